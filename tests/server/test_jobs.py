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
from vitreous.server.jobs import JobCancelled, JobQueue, ServerBusy


def run(coroutine):
    return asyncio.run(coroutine)


def test_work_gives_the_functions_result():
    async def go():
        return await JobQueue().run("a", lambda cancel: 7)

    assert run(go()) == 7


def test_an_error_comes_back_and_the_thread_is_free_again():
    async def go():
        jobs = JobQueue()
        with pytest.raises(ZeroDivisionError):
            await jobs.run("a", lambda cancel: 1 // 0)
        return await jobs.run("a", lambda cancel: 1)

    assert run(go()) == 1


def test_one_too_many_is_turned_away():
    async def go():
        jobs, open_ = JobQueue(max_waiting=2), threading.Event()
        held = asyncio.create_task(jobs.run("0", lambda cancel: open_.wait(5)))
        await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(jobs.run(str(i), lambda cancel: 0)) for i in (1, 2)]
        await asyncio.sleep(0.05)
        with pytest.raises(ServerBusy):
            await jobs.run("3", lambda cancel: 3)
        open_.set()
        await asyncio.gather(held, *waiting)
        return await jobs.run("4", lambda cancel: 4)

    assert run(go()) == 4


def test_one_that_waits_too_long_is_turned_away():
    async def go():
        jobs, open_ = JobQueue(max_wait=0.3), threading.Event()
        held = asyncio.create_task(jobs.run("0", lambda cancel: open_.wait(5)))
        await asyncio.sleep(0.05)
        with pytest.raises(ServerBusy):
            await jobs.run("1", lambda cancel: 1)
        open_.set()
        await held

    run(go())


def test_a_newer_request_ends_the_older_one_between_layers():
    model = ViT(variant("vit_femto_patch4_32")).eval()
    passes = 0

    def endless(cancel):
        nonlocal passes
        while True:
            with torch.inference_mode():
                model(torch.zeros(1, 3, 32, 32))
            passes += 1

    async def go():
        jobs = JobQueue()
        older = asyncio.create_task(jobs.run("page", endless))
        await asyncio.sleep(0.3)
        newer = asyncio.create_task(jobs.run("page", lambda cancel: "newer"))
        with pytest.raises(JobCancelled):
            await older
        return await newer

    assert run(go()) == "newer"
    assert passes > 0


def test_a_client_that_goes_away_frees_its_work():
    async def go():
        jobs, left = JobQueue(), time.monotonic() + 0.3

        async def gone():
            return time.monotonic() > left

        def endless(cancel):
            while True:
                cancel.check()
                time.sleep(0.01)

        with pytest.raises(JobCancelled):
            await jobs.run("a", endless, gone)
        return await jobs.run("b", lambda cancel: 2)

    assert run(go()) == 2


@pytest.mark.parametrize("ending", ["answered", "wrong", "cancelled"])
def test_nothing_of_a_job_outlives_it(ending):
    class Image:
        pass

    async def go():
        jobs, image = JobQueue(), Image()
        kept = weakref.ref(image)

        def job(cancel, image=image):
            if ending == "wrong":
                raise ValueError(image)
            while ending == "cancelled":
                cancel.check()
                time.sleep(0.01)

        task = asyncio.create_task(jobs.run("a", job))
        del image, job
        await asyncio.sleep(0.1)
        if ending == "cancelled":
            jobs.latest["a"].cancel.set()
        try:
            await task
        except (ValueError, JobCancelled):
            assert ending != "answered"
        else:
            assert ending == "answered"
        del task
        await jobs.run("b", lambda cancel: 0)  # the thread has gone on to something else
        return kept() is None

    gc.disable()  # it comes seldom, once much has been made: an image of 20 MB is one object to it
    try:
        assert run(go())
    finally:
        gc.enable()


def test_pages_do_not_cancel_each_other():
    async def go():
        jobs = JobQueue(threads=2)
        return await asyncio.gather(jobs.run("a", lambda cancel: time.sleep(0.1) or 1), jobs.run("b", lambda cancel: 2))

    assert run(go()) == [1, 2]


@pytest.mark.slow
def test_those_who_came_first_are_served_first():
    order = []

    async def go():
        jobs, open_ = JobQueue(), threading.Event()
        held = asyncio.create_task(jobs.run("0", lambda cancel: open_.wait(5)))
        await asyncio.sleep(0.05)
        rest = [asyncio.create_task(jobs.run(str(i), lambda cancel, i=i: order.append(i))) for i in range(1, 6)]
        await asyncio.sleep(0.7)  # more than one look whether they are still there
        open_.set()
        await asyncio.gather(held, *rest)

    run(go())
    assert order == [1, 2, 3, 4, 5]


def test_progress_says_who_is_before_and_what_is_done():
    async def go():
        jobs, open_ = JobQueue(), threading.Event()

        def slow(cancel):
            cancel.check("attention")
            cancel.check()
            open_.wait(5)

        assert jobs.progress("0") == {}
        held = asyncio.create_task(jobs.run("0", slow))
        await asyncio.sleep(0.05)
        rest = [asyncio.create_task(jobs.run(str(i), lambda cancel: 0)) for i in (1, 2)]
        await asyncio.sleep(0.05)
        assert jobs.progress("0") == {"doing": "attention"}
        assert [jobs.progress(name) for name in ("1", "2", "nobody", "")] == [{"before": 1}, {"before": 2}, {}, {}]
        open_.set()
        await asyncio.gather(held, *rest)
        assert jobs.progress("0") == {}
        assert jobs.lane.waiting == []

    run(go())


def test_those_who_leave_the_line_do_not_hold_it_up():
    async def go():
        jobs, open_ = JobQueue(), threading.Event()
        held = asyncio.create_task(jobs.run("0", lambda cancel: open_.wait(5)))
        await asyncio.sleep(0.05)
        left = [asyncio.create_task(jobs.run(str(i), lambda cancel: 0)) for i in (1, 2)]
        await asyncio.sleep(0.05)
        for task in left:
            task.cancel()
        stays = asyncio.create_task(jobs.run("3", lambda cancel: 3))
        await asyncio.sleep(0.05)
        assert jobs.progress("3") == {"before": 1}
        open_.set()
        await held
        assert await stays == 3
        return await jobs.run("4", lambda cancel: 4)

    assert run(go()) == 4


@pytest.mark.slow
def test_memory_goes_back_once_when_nobody_has_asked_for_a_while(monkeypatch):
    given = []
    monkeypatch.setattr(module, "give_back", lambda: given.append(threading.current_thread().name))

    async def go():
        jobs = JobQueue(idle_seconds=0.8)
        for _ in range(10):  # not between pages that follow each other
            await jobs.run("a", lambda cancel: 0)
            await asyncio.sleep(0.1)
        assert given == []
        await jobs.run("a", lambda cancel: time.sleep(1))  # nor while one is being worked out
        assert given == []
        until = time.monotonic() + 10
        while not given and time.monotonic() < until:
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        assert len(given) == 1
        assert given[0].startswith("vitreous-explore")  # the event loop does not wait for it
        await jobs.run("a", lambda cancel: 0)
        jobs.close()
        assert jobs.timer is None  # an explorer that ends has no thread for it any more

    run(go())


def test_a_quick_job_does_not_wait_for_a_long_one():
    async def ask():
        jobs, open_ = JobQueue(), threading.Event()
        long = asyncio.ensure_future(jobs.run("a", lambda cancel: open_.wait(5)))
        await asyncio.sleep(0.05)
        found = await asyncio.wait_for(jobs.run("b", lambda cancel: 7, quick=True), 2)
        assert not long.done()
        open_.set()
        await long
        return found

    assert asyncio.run(ask()) == 7


def waiting_line(jobs, clients, done):
    """A job that holds the one thread until the event is set, and one waiting job for each of the clients."""
    open_ = threading.Event()
    held = asyncio.ensure_future(jobs.run("held", lambda cancel: open_.wait(5)))
    tasks = [held]
    for client in clients:
        job = jobs.run(client, lambda cancel, client=client: done.append(client))
        tasks.append(asyncio.ensure_future(job))
    return open_, tasks


def test_a_quick_job_is_taken_while_the_queue_of_long_ones_is_full():
    async def ask():
        jobs, done = JobQueue(max_waiting=2), []
        open_, tasks = waiting_line(jobs, "ab", done)
        await asyncio.sleep(0.05)
        with pytest.raises(ServerBusy):
            jobs.check_capacity("c")
        jobs.check_capacity("c", quick=True)
        found = await asyncio.wait_for(jobs.run("c", lambda cancel: 7, quick=True), 2)
        open_.set()
        await asyncio.gather(*tasks)
        return found

    assert run(ask()) == 7


def test_a_client_with_many_jobs_gets_one_turn_a_round():
    async def ask():
        jobs, done = JobQueue(), []
        open_, tasks = waiting_line(jobs, ["", "", "", "b", "c"], done)  # without a name no job cancels another
        await asyncio.sleep(0.05)
        open_.set()
        await asyncio.gather(*tasks)
        return done

    assert run(ask()) == ["", "b", "c", "", ""]


def test_in_a_full_queue_the_client_with_most_jobs_gives_way():
    async def ask():
        jobs, done = JobQueue(max_waiting=3), []
        open_, tasks = waiting_line(jobs, ["", "", ""], done)
        await asyncio.sleep(0.05)
        other = asyncio.ensure_future(jobs.run("b", lambda cancel: done.append("b")))
        await asyncio.sleep(0.05)
        with pytest.raises(ServerBusy, match="3 requests"):
            await jobs.run("", lambda cancel: 0)
        open_.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await other
        assert [isinstance(each, ServerBusy) for each in found] == [False, False, False, True]
        return done

    assert run(ask()) == ["", "b", ""]


def test_the_first_turn_of_a_job_comes_before_others_are_completed():
    async def ask():
        jobs, order = JobQueue(), []

        def turns(name):
            def turn(cancel):
                while order.count(name) < 3:
                    order.append(name)
                    time.sleep(0.05)  # the others come in
                    if cancel.gives_way():
                        return False
                return True

            return turn

        await asyncio.gather(*(jobs.run_in_turns(name, turns(name)) for name in "ab"))
        assert not jobs.lane.started
        assert not jobs.active
        return order

    assert run(ask()) == ["a", "b", "a", "a", "b", "b"]


def test_no_more_jobs_are_begun_than_may_hold_memory():
    async def ask():
        jobs, order = JobQueue(max_started=2), []

        def turns(name):
            def turn(cancel):
                while order.count(name) < 2:
                    assert len(jobs.lane.started) <= 2
                    order.append(name)
                    time.sleep(0.05)  # the others come in
                    if cancel.gives_way():
                        return False
                return True

            return turn

        await asyncio.gather(*(jobs.run_in_turns(name, turns(name)) for name in "abc"))
        return order

    assert run(ask()) == ["a", "b", "a", "b", "c", "c"]


def test_a_job_that_has_begun_may_wait_longer_than_one_that_has_not():
    async def ask():
        jobs, seen = JobQueue(max_wait=0.2), []

        def turn(cancel):
            seen.append(1)
            return len(seen) == 2

        first = asyncio.ensure_future(jobs.run_in_turns("a", turn))
        await asyncio.gather(first, jobs.run("b", lambda cancel: time.sleep(0.6)))
        return len(seen)

    assert run(ask()) == 2
