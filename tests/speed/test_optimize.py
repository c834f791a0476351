"""Faster and the same: every backend against the plain model, for any number of images; choices are kept."""

import copy
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from families import FAMILIES, family, images
from optimized_models import MEAN, SMALL, STD, close, small

from vitreous.data.preprocess import Preprocess
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.runtime.device import pick_device
from vitreous.speed import optimize as module
from vitreous.speed.backends import BACKENDS, BackendChoice
from vitreous.speed.optimize import optimize
from vitreous.weights.card import Card
from vitreous.weights.save import save


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return small()


TESTED = [
    pytest.param(name, marks=[pytest.mark.cuda] if name.endswith("graph") else [])
    for name in BACKENDS
    if name != "small-batch graph"
]


@pytest.mark.slow
@pytest.mark.parametrize("name", TESTED)
def test_every_backend_gives_the_models_logits_for_any_number_of_images(model, name):
    fast = optimize(model, batch_size=3, backends=(name,), device="cuda" if name.endswith("graph") else "cpu")
    assert (fast.backend, fast.notes) == (name, [])
    for count in (1, 3, 7):  # filled up, as it is, cut and filled up
        x = torch.randn(count, 3, 16, 16)
        with torch.no_grad():
            close(fast(x), model(x))


def plain_output(model, x, precision):
    if precision == "bf16":
        return copy.deepcopy(model).bfloat16()(x.bfloat16()).float()
    return model(x)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_every_family_gives_its_own_logits_and_features(name, precision):
    model = family(name, whole=True)
    model.card = Card(name, Preprocess(size=model.config.size, resize=model.config.size, mean=MEAN, std=STD))
    x = images(model, 3)
    for backend in ("eager", "packed"):  # and what eager does where no packed pass is written for such blocks
        fast = optimize(model, precision, batch_size=3, backends=(backend,))
        assert not fast.notes
        close(fast(x), plain_output(model, x, precision), {"fp32": 1e-4, "bf16": 0.08}[precision])
    features = optimize(model, batch_size=3, backends=("eager",), output="features")
    close(features(x), model.features(x))


COMPILED = {"a pixel, linear": "int8", "a pixel, decoder": "fp32"} | {
    "relative table": "int8",
    "class attention pool": "fp32",
    "shared relative network": "bf16",
}
"""Each is compiled in one precision, and each precision once: a C++ compiler takes 5 to 20 s for one of them."""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("name", COMPILED)
def test_models_with_other_blocks_are_compiled_and_quantised_too(name, precision):
    """Blocks that the fused forward passes are not written for."""
    model = family(name, whole=True, width=64) if "pixel" in name else family(name, width=64, depth=1)
    model.card = Card(name, Preprocess(size=model.config.size, resize=model.config.size, mean=MEAN, std=STD))
    x = images(model, 3)
    with torch.no_grad():
        for backend in ("eager", *(["compiled"] if COMPILED[name] == precision else [])):
            fast = optimize(model, precision, batch_size=3, backends=(backend,))
            assert not fast.notes
            close(fast(x), plain_output(model, x, precision), {"fp32": 1e-4, "bf16": 0.05, "int8": 0.05}[precision])


def test_pixels_are_taken_as_they_are(model):
    pixels = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    fast = optimize(model, batch_size=4, backends=("eager",))
    with torch.no_grad():
        close(fast(pixels), model((pixels / 255 - mean) / std))
    with pytest.raises(ValueError, match="expected pixels as uint8, or floats normalised .*, got int64"):
        fast(pixels.long())


@pytest.mark.slow
@pytest.mark.parametrize("name", TESTED)
def test_every_backend_gives_the_models_features(name):
    model = small(depth=1)  # only what reads the last block differs from logits, and a short network compiles sooner
    device = "cuda" if name.endswith("graph") else "cpu"
    fast = optimize(model, output="features", batch_size=2, backends=(name,), device=device)
    assert (fast.backend, fast.notes) == (name, [])
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        close(fast(x), model.features(x))


def test_features_of_a_model_without_a_classifier_are_its_output(model):
    headless = small(classes=0)
    headless.card = replace(headless.card, head="none")
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        close(optimize(headless, output="features", batch_size=2, backends=("packed",))(x), headless(x))
    with pytest.raises(ValueError, match="output must be logits or features, got 'tokens'"):
        optimize(model, output="tokens")


def test_logits_and_features_are_remembered_apart(model, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "default_backends", lambda device, precision: ("eager", "packed"))
    monkeypatch.setattr(module, "time_backends", lambda built, example: {"eager": 2.0, "packed": 1.0})
    for output in ("logits", "features", "logits"):
        optimize(model, output=output, batch_size=2, cache=str(tmp_path))
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_bf16_is_near(model):
    x = torch.randn(6, 3, 16, 16)
    with torch.no_grad():
        close(optimize(model, "bf16", batch_size=6, backends=("eager",))(x), model(x), 0.05)


def test_int8_is_near_and_its_products_are_whole_numbers(model):
    x = torch.randn(6, 3, 16, 16)
    fast = optimize(model, "int8", batch_size=6, backends=("eager",))
    with torch.no_grad():
        theirs = model(x)
        close(fast(x), theirs, 0.1)
        assert not torch.allclose(fast(x), theirs, atol=1e-6)


def test_the_fastest_backend_is_taken_and_remembered(model, tmp_path, monkeypatch):
    monkeypatch.setattr(
        module, "time_backends", lambda runs, example: {"eager": 3.0, "packed": 4.0, "compiled": 1.0, "frozen": 2.0}
    )
    built, eager = [], BACKENDS["eager"]
    for name in list(BACKENDS):
        monkeypatch.setitem(BACKENDS, name, lambda *given, name=name: (built.append(name), eager(*given))[1])
    assert optimize(model, batch_size=2, cache=tmp_path).backend == "compiled"
    assert built == ["eager", "packed", "compiled", "frozen"]
    (kept,) = tmp_path.rglob("*.json")
    assert json.loads(kept.read_text())["backend"] == "compiled"
    built.clear()
    again = optimize(model, batch_size=2, cache=tmp_path)
    assert (again.backend, built, again.seconds) == ("compiled", ["compiled"], {})
    built.clear()
    optimize(model, batch_size=4, cache=tmp_path)  # another batch: another choice
    assert len(built) == 4
    kept.write_text("{")
    assert optimize(model, batch_size=2, cache=tmp_path).backend == "compiled"


def test_a_backend_that_fails_is_left_out_with_its_reason(model, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no C++ compiler")

    for name in ("packed", "compiled", "frozen"):
        monkeypatch.setitem(BACKENDS, name, broken)
    fast = optimize(model, batch_size=2)
    assert fast.backend == "eager"
    assert any("compiled was left out: RuntimeError: no C++ compiler" in line for line in fast.notes)
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        close(fast(x), model(x))


def test_where_no_backend_works_the_error_has_the_reason(model, monkeypatch):
    def broken(*arguments):
        raise NotImplementedError("no such kernel here")

    for name in BACKENDS:
        monkeypatch.setitem(BACKENDS, name, broken)
    with pytest.raises(
        ValueError, match=r"no backend runs this model in fp32 on cpu: try .*\(eager was left out.*no such kernel"
    ):
        optimize(model, batch_size=2)


def test_a_remembered_backend_that_no_longer_works_is_replaced(model, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "default_backends", lambda device, precision: ("eager", "packed", "compiled"))
    times = {"eager": 3.0, "packed": 2.0, "compiled": 1.0}
    monkeypatch.setattr(module, "time_backends", lambda runs, example: {name: times[name] for name in runs})
    eager = BACKENDS["eager"]
    for name in ("packed", "compiled"):
        monkeypatch.setitem(BACKENDS, name, eager)
    assert optimize(model, batch_size=2, cache=tmp_path).backend == "compiled"

    def gone(*arguments):
        raise RuntimeError("the compiler is gone")

    monkeypatch.setitem(BACKENDS, "compiled", gone)
    again = optimize(model, batch_size=2, cache=tmp_path)
    assert (again.backend, set(again.seconds)) == ("packed", {"eager", "packed"})


def test_a_choice_that_cannot_be_kept_is_no_trouble_and_leaves_nothing_behind(tmp_path):
    (tmp_path / "backends").write_text("a file where the folder should be")
    BackendChoice(tmp_path / "backends" / "one.json").write("eager", {"eager": 1.0})
    kept = BackendChoice(tmp_path / "more" / "one.json")
    kept.write("eager", {"eager": 1.0})
    assert (kept.read(), [path.name for path in kept.path.parent.iterdir()]) == ("eager", ["one.json"])


def test_threads_get_each_their_own_answers(model):
    """As a recorded graph does, this one reads and writes one place."""
    fast = optimize(model, batch_size=1, backends=("eager",), pixels=False)
    fast.lanes = 1
    place = torch.empty(1, 1)

    def run(x):
        place.copy_(x.mean().view(1, 1))
        time.sleep(0.01)
        return place.clone()  # as the copy from a GPU does

    fast.compute = run
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda i: fast(torch.full((1, 3, 16, 16), float(i))).item(), range(8)))
    assert answers == [float(i) for i in range(8)]


def test_auto_is_a_device_and_those_taken_are_named(model):
    assert optimize(model, device="auto", backends=("eager",)).device == pick_device("auto")
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda, cuda:N or mps, got 'tpu'"):
        optimize(model, device="tpu")


def test_other_models_and_precisions_are_refused(model):
    with pytest.raises(ValueError, match=r"set model\.card"):
        optimize(ViT(ViTConfig(**SMALL)))
    with pytest.raises(ValueError, match="got a ResNet: no --fast, int8 and fp8 here"):
        optimize(ResNet(ResNetConfig(18, 5)))
    with pytest.raises(ValueError, match="precision must be one of fp32, bf16, int8, fp8"):
        optimize(model, "fp4")


@pytest.mark.parametrize("name", ["eager", "packed"])
def test_images_of_another_size_or_depth_are_refused_in_the_models_words(model, name):
    fast = optimize(model, batch_size=2, backends=(name,))
    x = torch.randn(2, 3, *model.config.size)
    for wrong in (x[:, :1], x[:, :, :-1], x[0]):
        with pytest.raises(ValueError, match=r"this model takes \[b 3 \d+ \d+\], got \[.*model.card.preprocess"):
            fast(wrong)
    assert fast(x[:0]).shape == (0, model.config.classes)


def test_what_is_computed_lies_in_memory_as_it_was_compiled_for(model):
    fast = optimize(model, batch_size=2, backends=("eager",), pixels=False)
    height, width = model.config.size
    cut = torch.randn(2, 3, height + 3, width + 5)[:, :, :height, :width]
    for x in (cut, cut.contiguous(memory_format=torch.channels_last)):
        assert fast.prepare(x).is_contiguous()
        assert torch.equal(fast(x), fast(cut.contiguous()))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 0}, "a batch holds at least one image, got batch size 0"),
        ({"batch_size": -1}, "at least one image"),
        ({"batch_size": "8"}, "a batch holds at least one image, got batch size '8'"),
        ({"batch_size": 2.5}, "at least one image, got batch size 2.5"),
        ({"merge": "8"}, "tokens to merge in each block: 0 or more, got '8'"),
        ({"device": None}, "device must be auto, cpu, cuda, cuda:N or mps, got None"),
        ({"backends": ("eager", "nope")}, "no backend is called 'nope': backends is a tuple of 'eager', 'compiled'"),
        ({"backends": "eager"}, "no backend is called 'e'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_built(model, given, message):
    with pytest.raises(ValueError, match=message):
        optimize(model, **given)


def test_what_is_no_vit_or_no_tensor_is_named(model):
    with pytest.raises(ValueError, match="only Vision Transformers are optimized, got a str"):
        optimize("packaged:cifar10")
    with pytest.raises(TypeError, match=r"takes a tensor \[b 3 .*\], got 'photo.jpg'"):
        optimize(model, backends=("eager",))("photo.jpg")


@pytest.mark.slow
def test_fast_classifies_alike(tmp_path, capsys, monkeypatch):
    """Through the command line; compiled for real, once."""
    from vitreous.cli.main import main
    from vitreous.data.sample_photos import samples

    monkeypatch.setattr(module, "default_backends", lambda device, precision: ("eager", "compiled"))
    save(small(), tmp_path / "model")
    for number, (name, image) in enumerate(samples().items()):
        (tmp_path / f"pics/{number % 2}").mkdir(parents=True, exist_ok=True)
        image.resize((64, 64)).save(tmp_path / f"pics/{number % 2}/{name}.png")
    message = {}
    for flags in ((), ("--fast",)):
        words = ["classify", str(tmp_path / "pics"), "--model", str(tmp_path / "model"), "--json", "--device", "cpu"]
        main([*words, *flags])
        message[flags] = json.loads(capsys.readouterr().out)
    for plain, fast in zip(message[()], message[("--fast",)], strict=True):
        assert plain["image"] == fast["image"]
        assert [p["class_name"] for p in plain["predictions"]] == [p["class_name"] for p in fast["predictions"]]
        logits = [[p["logit"] for p in each["predictions"]] for each in (plain, fast)]
        assert logits[0] == pytest.approx(logits[1], abs=2e-3)


def test_fast_and_fp16_do_not_go_together(tmp_path, capsys):
    from vitreous.cli.main import main

    with pytest.raises(SystemExit):
        main(["classify", "--model", "cifar10", "--fast", "--precision", "fp16", "--device", "cpu"])
    assert "--fast takes fp32, bf16, int8 or fp8" in capsys.readouterr().err
