"""Faster and the same: every way against the plain model, for any number of images; choices are kept."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from conftest import noise
from vitreous.data.preprocess import Preprocess
from vitreous.models.last_block import logits_only
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT, ViTConfig
from vitreous.predict.embed import embedding
from vitreous.speed import backends as ways
from vitreous.speed import optimize as module
from vitreous.speed.choice import Choice
from vitreous.speed.fold import folded
from vitreous.speed.optimize import WAYS, optimize
from vitreous.weights.card import Card

MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
SMALL = {"image_size": 16, "patch_size": 4, "width": 64, "depth": 2, "heads": 4, "classes": 7}


def small(**changes):
    model = noise(ViT(ViTConfig(**{**SMALL, **changes})))
    model.card = Card("small", Preprocess(size=(16, 16), resize=(16, 16), mean=MEAN, std=STD))
    return model


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return small()


def close(ours, theirs, share=1e-4):
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= share * max(1.0, theirs.abs().max().item())


RACERS = [way for way in WAYS if way != "few graph" and (torch.cuda.is_available() or not way.endswith("graph"))]


@pytest.mark.parametrize("way", RACERS)
def test_every_way_gives_the_models_logits_for_any_number_of_images(model, way):
    fast = optimize(model, batch=3, ways=(way,), device="cuda" if way.endswith("graph") else "cpu")
    assert (fast.way, fast.remarks) == (way, [])
    for count in (1, 3, 7):  # filled up, as it is, cut and filled up
        x = torch.randn(count, 3, 16, 16)
        with torch.no_grad():
            close(fast(x), model(x))


def test_pixels_are_taken_as_they_are(model):
    pixels = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    fast = optimize(model, batch=4, ways=("eager",))
    with torch.no_grad():
        close(fast(pixels), model((pixels / 255 - mean) / std))


def test_features_too(model):
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        close(optimize(model, batch=2, compute=embedding, ways=("eager",))(x), model.features(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_kernel_for_few_tokens_gives_the_models_logits_in_bf16_and_is_left_out_elsewhere(model):
    x = torch.randn(2, 3, 16, 16)
    fast = optimize(model, "bf16", batch=2, ways=("few graph",), device="cuda")
    assert (fast.way, fast.remarks) == ("few graph", [])
    with torch.no_grad():
        close(fast(x), model(x), 0.05)
    assert optimize(model, "fp32", batch=2, ways=("few graph",), device="cuda").way == "eager"
    assert optimize(model, "bf16", batch=64, ways=("few graph",), device="cuda").way == "eager"


def test_what_is_tried_on_a_gpu_and_who_a_kernel_for_few_tokens_is_for(model, monkeypatch):
    """Without one: what is chosen, not what it computes."""
    cuda = torch.device("cuda")
    assert ways.usual(cuda, "fp8") == ways.usual(cuda, "int8") == ("compiled graph",)
    assert ways.usual(cuda, "bf16")[-1] == "few graph"
    network = folded(model).bfloat16()
    images = torch.zeros(2, 3, 16, 16, dtype=torch.bfloat16)
    monkeypatch.setattr(ways, "has_triton", lambda device: True)
    assert callable(ways.few(network, logits_only, images))
    for given in (images.float(), images.repeat(32, 1, 1, 1)):  # fp32; 64 × 17 tokens
        with pytest.raises(ways.Unfit, match="made for bf16"):
            ways.few(network, logits_only, given)
    monkeypatch.setattr(ways, "has_triton", lambda device: False)
    with pytest.raises(ways.Unfit, match="Triton"):
        ways.few(network, logits_only, images)


def test_bf16_is_near(model):
    x = torch.randn(6, 3, 16, 16)
    with torch.no_grad():
        close(optimize(model, "bf16", batch=6, ways=("eager",))(x), model(x), 0.05)


def test_int8_is_near_and_its_products_are_whole_numbers(model):
    x = torch.randn(6, 3, 16, 16)
    fast = optimize(model, "int8", batch=6, ways=("eager",))
    with torch.no_grad():
        theirs = model(x)
        close(fast(x), theirs, 0.1)
        assert not torch.allclose(fast(x), theirs, atol=1e-6)


def test_the_fastest_way_is_taken_and_remembered(model, tmp_path, monkeypatch):
    monkeypatch.setattr(
        module, "_race", lambda runs, example: {"eager": 3.0, "packed": 4.0, "compiled": 1.0, "frozen": 2.0}
    )
    built, eager = [], WAYS["eager"]
    for way in list(WAYS):
        monkeypatch.setitem(WAYS, way, lambda *given, way=way: (built.append(way), eager(*given))[1])
    assert optimize(model, batch=2, cache=tmp_path).way == "compiled"
    assert built == ["eager", "packed", "compiled", "frozen"]
    (kept,) = tmp_path.rglob("*.json")
    assert json.loads(kept.read_text())["way"] == "compiled"
    built.clear()
    again = optimize(model, batch=2, cache=tmp_path)
    assert (again.way, built, again.tried) == ("compiled", ["compiled"], {})
    built.clear()
    optimize(model, batch=4, cache=tmp_path)  # another batch: another choice
    assert len(built) == 4
    kept.write_text("{")
    assert optimize(model, batch=2, cache=tmp_path).way == "compiled"


def test_a_way_that_fails_is_left_out_with_its_reason(model, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no C++ compiler")

    for way in ("packed", "compiled", "frozen"):
        monkeypatch.setitem(WAYS, way, broken)
    fast = optimize(model, batch=2)
    assert fast.way == "eager"
    assert any("compiled was left out: RuntimeError: no C++ compiler" in line for line in fast.remarks)
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        close(fast(x), model(x))


def test_where_no_way_works_the_reason_is_told(model, monkeypatch):
    def broken(*arguments):
        raise NotImplementedError("no such kernel here")

    for way in WAYS:
        monkeypatch.setitem(WAYS, way, broken)
    with pytest.raises(ValueError, match=r"runs in no way in fp32 on cpu: try .*\(eager was left out.*no such kernel"):
        optimize(model, batch=2)


def test_a_remembered_way_that_works_no_more_is_replaced(model, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "usual", lambda device, precision: ("eager", "packed", "compiled"))
    times = {"eager": 3.0, "packed": 2.0, "compiled": 1.0}
    monkeypatch.setattr(module, "_race", lambda runs, example: {way: times[way] for way in runs})
    eager = WAYS["eager"]
    for way in ("packed", "compiled"):
        monkeypatch.setitem(WAYS, way, eager)
    assert optimize(model, batch=2, cache=tmp_path).way == "compiled"

    def gone(*arguments):
        raise RuntimeError("the compiler is gone")

    monkeypatch.setitem(WAYS, "compiled", gone)
    again = optimize(model, batch=2, cache=tmp_path)
    assert (again.way, set(again.tried)) == ("packed", {"eager", "packed"})


def test_a_choice_that_cannot_be_kept_is_no_trouble_and_leaves_nothing_behind(tmp_path):
    (tmp_path / "ways").write_text("a file where the folder should be")
    Choice(tmp_path / "ways" / "one.json").write("eager", {"eager": 1.0})
    kept = Choice(tmp_path / "more" / "one.json")
    kept.write("eager", {"eager": 1.0})
    assert (kept.read(), [path.name for path in kept.path.parent.iterdir()]) == ("eager", ["one.json"])


def test_threads_get_each_their_own_answers(model):
    """As a recorded graph does, this one reads and writes one place."""
    fast = optimize(model, batch=1, ways=("eager",), pixels=False)
    fast.lanes = 1
    place = torch.empty(1, 1)

    def run(x):
        place.copy_(x.mean().view(1, 1))
        time.sleep(0.01)
        return place.clone()  # the way back from a GPU

    fast.run = run
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda i: fast(torch.full((1, 3, 16, 16), float(i))).item(), range(8)))
    assert answers == [float(i) for i in range(8)]


def test_what_cannot_be_made_faster_is_refused(model):
    with pytest.raises(ValueError, match=r"set model\.card"):
        optimize(ViT(ViTConfig(**SMALL)))
    with pytest.raises(ValueError, match="no --fast, int8 and fp8 for a ResNet"):
        optimize(ResNet(ResNetConfig(18, 5)))
    with pytest.raises(ValueError, match="precision must be one of fp32, bf16, int8, fp8"):
        optimize(model, "fp4")


@pytest.mark.parametrize("way", ["eager", "packed"])
def test_images_of_another_size_or_depth_are_refused_in_the_models_words(model, way):
    fast = optimize(model, batch=2, ways=(way,))
    x = torch.randn(2, 3, *model.config.size)
    for wrong in (x[:, :1], x[:, :, :-1], x[0]):
        with pytest.raises(ValueError, match=r"this model takes \[b 3 \d+ \d+\], got \[.*model.card.preprocess"):
            fast(wrong)
    assert fast(x[:0]).shape == (0, model.config.classes)


def test_what_is_computed_lies_in_memory_as_it_was_compiled_for(model):
    fast = optimize(model, batch=2, ways=("eager",), pixels=False)
    height, width = model.config.size
    cut = torch.randn(2, 3, height + 3, width + 5)[:, :, :height, :width]
    for x in (cut, cut.contiguous(memory_format=torch.channels_last)):
        assert fast.prepare(x).is_contiguous()
        assert torch.equal(fast(x), fast(cut.contiguous()))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"batch": 0}, "a batch holds at least one image, got batch size 0"),
        ({"batch": -1}, "at least one image"),
        ({"ways": ("eager", "nope")}, "no way is called 'nope': ways is a tuple of 'eager', 'compiled'"),
        ({"ways": "eager"}, "no way is called 'e'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_built(model, given, message):
    with pytest.raises(ValueError, match=message):
        optimize(model, **given)


@pytest.mark.slow
def test_fast_classifies_embeds_and_evaluates_alike(tmp_path, capsys):
    """Through the command line; compiled for real, once."""
    from vitreous.cli.main import main
    from vitreous.data.samples import samples

    for number, (name, image) in enumerate(samples().items()):
        (tmp_path / f"pics/{number % 2}").mkdir(parents=True, exist_ok=True)
        image.resize((64, 64)).save(tmp_path / f"pics/{number % 2}/{name}.png")
    message = {}
    for flags in ((), ("--fast",)):
        main(["classify", str(tmp_path / "pics"), "--json", "--device", "cpu", *flags])
        message[flags] = json.loads(capsys.readouterr().out)
    for plain, fast in zip(message[()], message[("--fast",)], strict=True):
        assert plain["image"] == fast["image"]
        assert [p["label"] for p in plain["predictions"]] == [p["label"] for p in fast["predictions"]]
        logits = [[p["logit"] for p in each["predictions"]] for each in (plain, fast)]
        assert logits[0] == pytest.approx(logits[1], abs=2e-3)


def test_fast_and_fp16_do_not_go_together(tmp_path, capsys):
    from vitreous.cli.main import main

    with pytest.raises(SystemExit):
        main(["classify", "--fast", "--precision", "fp16", "--device", "cpu"])
    assert "--fast knows fp32, bf16, int8 and fp8" in capsys.readouterr().err
