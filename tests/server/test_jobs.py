import asyncio
import gc
import threading
import time
import weakref

import pytest
import torch

from vitreous.models.variants import variant
from vitreous.models.vit import ViT
from vitreous.server import jobs as module
from vitreous.server.jobs import Busy, Cancelled, Work


def run(coroutine):
    return asyncio.run(coroutine)


def test_work_gives_the_functions_result():
    async def go():
        return await Work().run("a", lambda flag: 7)

    assert run(go()) == 7


def test_an_error_comes_back_and_the_thread_is_free_again():
    async def go():
        work = Work()
        with pytest.raises(ZeroDivisionError):
            await work.run("a", lambda flag: 1 // 0)
        return await work.run("a", lambda flag: 1)

    assert run(go()) == 1


def test_one_too_many_is_turned_away():
    async def go():
        work, open_ = Work(waiting=2), threading.Event()
        held = asyncio.create_task(work.run("0", lambda flag: open_.wait(5)))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(work.run(str(i), lambda flag: 0)) for i in (1, 2)]
        await asyncio.sleep(0.05)
        with pytest.raises(Busy):
            await work.run("3", lambda flag: 3)
        open_.set()
        await asyncio.gather(held, *waiting)
        return await work.run("4", lambda flag: 4)

    assert run(go()) == 4


def test_one_that_waits_too_long_is_turned_away():
    async def go():
        work, open_ = Work(patience=0.3), threading.Event()
        held = asyncio.create_task(work.run("0", lambda flag: open_.wait(5)))
        await asyncio.sleep(0.05)
        with pytest.raises(Busy):
            await work.run("1", lambda flag: 1)
        open_.set()
        await held

    run(go())


def test_a_newer_request_ends_the_older_one_between_layers():
    model = ViT(variant("vit_femto_patch4_32")).eval()
    passes = 0

    def endless(flag):
        nonlocal passes
        while True:
            with torch.inference_mode():
                model(torch.zeros(1, 3, 32, 32))
            passes += 1

    async def go():
        work = Work()
        older = asyncio.create_task(work.run("page", endless))
        await asyncio.sleep(0.3)
        newer = asyncio.create_task(work.run("page", lambda flag: "newer"))
        with pytest.raises(Cancelled):
            await older
        return await newer

    assert run(go()) == "newer"
    assert passes > 0


def test_a_client_that_goes_away_frees_its_work():
    async def go():
        work, left = Work(), time.monotonic() + 0.3

        async def gone():
            return time.monotonic() > left

        def endless(flag):
            while True:
                flag.check()
                time.sleep(0.01)

        with pytest.raises(Cancelled):
            await work.run("a", endless, gone)
        return await work.run("b", lambda flag: 2)

    assert run(go()) == 2


@pytest.mark.parametrize("ending", ["answered", "wrong", "cancelled"])
def test_nothing_of_a_job_outlives_it(ending):
    class Image:
        pass

    async def go():
        work, image = Work(), Image()
        kept = weakref.ref(image)

        def job(flag, image=image):
            if ending == "wrong":
                raise ValueError(image)
            while ending == "cancelled":
                flag.check()
                time.sleep(0.01)

        task = asyncio.create_task(work.run("a", job))
        del image, job
        await asyncio.sleep(0.1)
        if ending == "cancelled":
            work.latest["a"].set()
        try:
            await task
        except (ValueError, Cancelled):
            assert ending != "answered"
        else:
            assert ending == "answered"
        del task
        await work.run("b", lambda flag: 0)  # the thread has gone on to something else
        return kept() is None

    gc.disable()  # it comes seldom, once much has been made: an image of 20 MB is one object to it
    try:
        assert run(go())
    finally:
        gc.enable()


def test_pages_do_not_cancel_each_other():
    async def go():
        work = Work(threads=2)
        return await asyncio.gather(work.run("a", lambda flag: time.sleep(0.1) or 1), work.run("b", lambda flag: 2))

    assert run(go()) == [1, 2]


def test_those_who_came_first_are_served_first():
    order = []

    async def go():
        work, open_ = Work(), threading.Event()
        held = asyncio.create_task(work.run("0", lambda flag: open_.wait(5)))
        await asyncio.sleep(0.05)
        rest = [asyncio.create_task(work.run(str(i), lambda flag, i=i: order.append(i))) for i in range(1, 6)]
        await asyncio.sleep(0.7)  # more than one look whether they are still there
        open_.set()
        await asyncio.gather(held, *rest)

    run(go())
    assert order == [1, 2, 3, 4, 5]


def test_progress_says_who_is_before_and_what_is_done():
    async def go():
        work, open_ = Work(), threading.Event()

        def slow(flag):
            flag.check("attention")
            flag.check()
            open_.wait(5)

        assert work.progress("0") == {}
        held = asyncio.create_task(work.run("0", slow))
        await asyncio.sleep(0.05)
        rest = [asyncio.create_task(work.run(str(i), lambda flag: 0)) for i in (1, 2)]
        await asyncio.sleep(0.05)
        assert work.progress("0") == {"doing": "attention"}
        assert [work.progress(name) for name in ("1", "2", "nobody", "")] == [{"before": 1}, {"before": 2}, {}, {}]
        open_.set()
        await asyncio.gather(held, *rest)
        assert work.progress("0") == {}
        assert work.line == []

    run(go())


def test_those_who_leave_the_line_do_not_hold_it_up():
    async def go():
        work, open_ = Work(), threading.Event()
        held = asyncio.create_task(work.run("0", lambda flag: open_.wait(5)))
        await asyncio.sleep(0.05)
        left = [asyncio.create_task(work.run(str(i), lambda flag: 0)) for i in (1, 2)]
        await asyncio.sleep(0.05)
        for task in left:
            task.cancel()
        stays = asyncio.create_task(work.run("3", lambda flag: 3))
        await asyncio.sleep(0.05)
        assert work.progress("3") == {"before": 1}
        open_.set()
        await held
        assert await stays == 3
        return await work.run("4", lambda flag: 4)

    assert run(go()) == 4


def test_memory_goes_back_once_when_nobody_has_asked_for_a_while(monkeypatch):
    given = []
    monkeypatch.setattr(module, "give_back", lambda: given.append(threading.current_thread().name))

    async def go():
        work = Work(rest=0.8)
        for _ in range(10):  # not between pages that follow each other
            await work.run("a", lambda flag: 0)
            await asyncio.sleep(0.1)
        assert given == []
        await work.run("a", lambda flag: time.sleep(1))  # nor while one is being worked out
        assert given == []
        until = time.monotonic() + 10
        while not given and time.monotonic() < until:
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        assert len(given) == 1
        assert given[0].startswith("vitreous-explore")  # the event loop does not wait for it
        await work.run("a", lambda flag: 0)
        work.close()
        assert work.timer is None  # an explorer that ends has no thread for it any more

    run(go())
