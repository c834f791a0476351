"""Images travel as bytes and become what they always were; order, bounds and broken images are kept."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import pytest
import torch
from PIL import Image

from conftest import noise
from vitreous.data.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.inside.capture import capture
from vitreous.inside.intervene import intervene
from vitreous.models.hooks import Hook, activate
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.classify import classify, classify_each
from vitreous.predict.pipeline import MANY, PlainCompute, choose_compute, compute_batches, lanes_of, to_device, to_model
from vitreous.runtime.device import MAX_LANES, max_lanes
from vitreous.speed import optimize as optimization
from vitreous.speed.onednn import onednn_available
from vitreous.speed.optimize import optimize
from vitreous.weights.card import Card

PREPROCESS = Preprocess(size=(16, 16), resize=18, mean=IMAGENET_MEAN, std=IMAGENET_STD)


class Elsewhere:
    """Stands for a result on a GPU."""

    device = torch.device("meta")

    def __init__(self, name, log):
        self.name, self.log = name, log

    def cpu(self):
        self.log.append(f"read {self.name}")
        return self.name


def test_every_value_is_normalised_to_the_same_bits_as_images_one_by_one():
    values = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16)
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))
    assert torch.equal(PREPROCESS.normalise(values), (values.float() / 255 - mean) / std)


def test_pixels_are_normalised_on_the_models_device_and_floats_are_left():
    pixels = torch.randint(256, (2, 3, 16, 16), dtype=torch.uint8)
    x = PREPROCESS.normalise(pixels)
    assert torch.equal(to_model(pixels, PREPROCESS, torch.zeros(1)), x)
    assert torch.equal(to_model(x, PREPROCESS, torch.zeros(1)), x)
    assert torch.equal(to_model(pixels, PREPROCESS, torch.zeros(1, dtype=torch.bfloat16)), x.bfloat16())


@pytest.mark.parametrize("kind", [torch.int64, torch.bool])
def test_pixels_of_other_integers_are_refused(kind):
    message = f"expected pixels as uint8, or floats normalised as the model's card says, got {str(kind)[6:]}"
    with pytest.raises(ValueError, match=message):
        to_model(torch.ones(2, 3, 16, 16, dtype=kind), PREPROCESS, torch.zeros(1))


class Somewhere:
    """Stands for a batch, and notes what is done to it."""

    def __init__(self, kind):
        self.device, self.done = torch.device(kind), []

    def pin_memory(self):
        self.done.append("pinned")
        return self

    def to(self, device, non_blocking):
        self.done.append(f"to {device.type}" + " meanwhile" * non_blocking)
        return self


@pytest.mark.parametrize(
    ("here", "there", "done"),
    [
        ("cpu", "cuda", ["pinned", "to cuda meanwhile"]),
        ("cuda", "cuda", ["to cuda meanwhile"]),
        ("cpu", "cpu", ["to cpu meanwhile"]),
    ],
)
def test_a_batch_on_its_way_from_here_to_a_gpu_is_pinned_and_no_other(here, there, done):
    assert to_device(Somewhere(here), torch.device(there)).done == done


def test_on_a_gpu_the_next_batch_is_begun_before_the_last_is_read():
    log = []

    def compute(batch):
        log.append(f"begin {batch[0]}")
        return Elsewhere(batch[0], log)

    batches = [([i], f"batch {i}") for i in (1, 2, 3)]
    assert list(compute_batches(compute, batches)) == [("batch 1", 1), ("batch 2", 2), ("batch 3", 3)]
    assert log == ["begin 1", "begin 2", "read 1", "begin 3", "read 2", "read 3"]


def test_an_answer_that_is_there_at_once_is_not_kept_back_by_those_before_it():
    """Such as that of a batch without a single image that could be read."""
    log = []

    def compute(batch):
        log.append(f"begin {batch[0]}")
        return Elsewhere(batch[0], log)

    batches = [([i] if i != 3 else torch.empty(0), i) for i in (1, 2, 3, 4)]
    assert [about for about, _ in compute_batches(compute, batches, waiting=2)] == [1, 2, 3, 4]
    assert log == ["begin 1", "begin 2", "read 1", "read 2", "begin 4", "read 4"]


def test_on_a_cpu_an_answer_is_given_before_the_next_batch_is_asked_for():
    asked = []
    batches = ((torch.tensor([i]), asked.append(i)) for i in count())
    assert [int(answer) for _, answer in islice(compute_batches(lambda x: x * 2, batches), 3)] == [0, 2, 4]
    assert asked == [0, 1, 2]


def test_in_lanes_batches_are_computed_in_parallel_and_yielded_in_order():
    both = threading.Barrier(2, timeout=20)  # broken unless two are inside together
    shares = []

    def compute(batch):
        both.wait()
        shares.append(torch.get_num_threads())
        return batch * 2

    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        found = compute_batches(compute, [(torch.tensor([i]), i) for i in range(6)], lanes=2)
        assert [(about, int(answer)) for about, answer in found] == [(i, 2 * i) for i in range(6)]
        assert shares == [2] * 6
        assert torch.get_num_threads() == 4
        with ThreadPoolExecutor(1) as pool:  # a thread that is new begins with what was set last, by whichever thread
            assert pool.submit(torch.get_num_threads).result() == 4
    finally:
        torch.set_num_threads(threads)


def test_an_error_in_a_lane_comes_out_and_lanes_left_early_end():
    def compute(batch):
        if batch == 3:
            raise ValueError("three")
        return batch

    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="three"):
        list(compute_batches(compute, ((torch.tensor([i]), i) for i in count()), lanes=2))
    results = compute_batches(lambda batch: batch, ((torch.tensor([i]), i) for i in count()), lanes=2)
    next(results)
    results.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("vitreous-read")]
    assert torch.get_num_threads() == threads


def test_what_may_be_asked_for_several_batches_says_so(model):
    assert lanes_of(None) == lanes_of(model) == 1
    assert lanes_of(PlainCompute(model, lanes=3)) == 3
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert optimize(model, backends=("packed",)).lanes == 2
        torch.set_num_threads(64)
        assert optimize(model, backends=("eager",)).lanes == MAX_LANES
    finally:
        torch.set_num_threads(threads)


def test_answers_in_lanes_are_those_without(model):
    images = [Image.effect_noise((20, 30), 10 + 9 * i).convert("RGB") for i in range(21)]
    fast = optimize(model, batch_size=4, backends=("packed",))
    fast.lanes = 3
    ours, plain = (list(classify_each(images, model, batch_size=4, compute=each)) for each in (fast, None))
    assert [a.best.index for a in ours] == [a.best.index for a in plain]
    assert [a.best.logit for a in ours] == pytest.approx([a.best.logit for a in plain], abs=1e-5)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = noise(ViT(ViTConfig(image_size=16, patch_size=4, width=32, depth=2, heads=2, classes=7))).eval()
    made.card = Card("small", PREPROCESS)
    return made


def test_answers_and_errors_keep_their_order(model, tmp_path):
    names = []
    for i in range(11):
        names.append(tmp_path / f"{i}.png")
        if i in (0, 4, 5):
            names[-1].write_bytes(b"no image")
        else:
            Image.effect_noise((20 + i, 30), 90).convert("RGB").save(names[-1])
    answers = list(classify_each(names, model, batch_size=2, device="cpu"))
    assert [getattr(a, "image", None) or a.name for a in answers] == [str(name) for name in names]
    assert [hasattr(a, "reason") for a in answers] == [i in (0, 4, 5) for i in range(11)]
    with torch.no_grad():
        logits = model(PREPROCESS(Image.open(names[7]))[None])[0]
    assert answers[7].best.logit == pytest.approx(logits.max().item(), abs=1e-5)


def test_whoever_stops_early_leaves_no_thread_behind(model):
    images = (Image.new("RGB", (20, 20), (i % 256, 0, 0)) for i in count())
    answers = classify_each(images, model, batch_size=4, device="cpu")
    next(answers)
    answers.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("vitreous-read")]


@pytest.mark.cuda
def test_a_gpu_normalises_to_the_same_bits():
    pixels = torch.randint(256, (8, 3, 16, 16), dtype=torch.uint8)
    there = to_model(pixels, PREPROCESS, torch.zeros(1, device="cuda")).cpu()
    assert torch.equal(there, PREPROCESS.normalise(pixels))


# --- what computes: the plain model for a few images; packed weights and parallel batches for many on a CPU ---

SMALL = {"image_size": 16, "patch_size": 4, "width": 32, "depth": 2, "heads": 2, "classes": 7}
HALVES = Preprocess(size=(16, 16), resize=(16, 16), mean=(0.5,) * 3, std=(0.25,) * 3)


def asked(model, output, images, **changes):
    return choose_compute(model, output, images=images, **{"batch_size": 4, "device": "cpu"} | changes)


def carded(model):
    model.card = Card("small", HALVES)
    return (noise(model) if isinstance(model, ViT) else model).eval()  # variances must stay above zero


NETWORKS = {
    "a ViT": (lambda: ViT(ViTConfig(**SMALL)), "logits"),
    "its features": (lambda: ViT(ViTConfig(**SMALL)), "features"),
    "one that reads all tokens": (lambda: ViT(ViTConfig(**SMALL, pool="mean")), "logits"),
    "a ResNet": (lambda: ResNet(ResNetConfig(18, 5)), "logits"),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_many_images_get_several_batches_at_once_and_the_same_answers(network):
    build, output = NETWORKS[network]
    torch.manual_seed(0)
    model = carded(build())
    assert asked(model, output, MANY - 1) is None
    compute = asked(model, output, MANY)
    assert lanes_of(compute) == max_lanes()
    pixels = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    plain = PlainCompute(model, output)(pixels)
    assert (compute(pixels) - plain).abs().max() <= 1e-5 * max(1.0, plain.abs().max().item())


@pytest.mark.skipif(not onednn_available(), reason="this torch has no oneDNN")
def test_weights_are_packed_if_the_network_allows_it():
    model = carded(ViT(ViTConfig(**SMALL)))
    assert asked(model, "logits", MANY).backend == "packed"
    assert not hasattr(asked(model, "features", MANY), "backend")
    assert not hasattr(asked(model, "logits", MANY, precision="fp16"), "backend")


def test_what_was_chosen_is_noted_and_differs_by_rounding_alone():
    torch.manual_seed(0)
    model = carded(ViT(ViTConfig(**SMALL)))
    pixels = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    assert choose_compute(model, device="cpu") is None
    notes = []
    merged = choose_compute(model, merge=2, device="cpu", note=notes.append)
    assert notes == ["merging 2 tokens in each block: answers differ from the whole model's"]
    assert merged(pixels).shape == (6, 7)
    with pytest.raises(ValueError, match="got fp16: use bf16"):
        choose_compute(model, fast=True, precision="fp16", device="cpu")


@pytest.mark.skipif(not onednn_available(), reason="this torch has no oneDNN")
def test_features_with_fast_get_the_fast_backends_and_equal_plain_within_rounding(monkeypatch, tmp_path):
    monkeypatch.setattr("vitreous.predict.pipeline.cache_folder", lambda: tmp_path)
    monkeypatch.setattr(optimization, "default_backends", lambda device, precision: ("packed",))
    model, notes = carded(ViT(ViTConfig(**SMALL))), []
    fast = choose_compute(model, "features", fast=True, device="cpu", note=notes.append)
    assert (fast.backend, notes[-1]) == ("packed", "fast: packed")
    pixels = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    plain = PlainCompute(model, "features")(pixels)
    assert plain.shape == (6, 32)
    assert (fast(pixels) - plain).abs().max() <= 1e-5 * max(1.0, plain.abs().max().item())


def test_merging_needs_tokens_and_a_count():
    with pytest.raises(ValueError, match="leave --merge out for a ResNet"):
        choose_compute(carded(ResNet(ResNetConfig(18, 5))), merge=4, device="cpu")
    for fast in (False, True):
        with pytest.raises(ValueError, match="tokens to merge in each block: 0 or more, got -1"):
            choose_compute(carded(ViT(ViTConfig(**SMALL))), merge=-1, fast=fast, device="cpu")


# --- hooks of the model: a copy would not have them ---


def photo():
    return Image.effect_noise((16, 16), 90).convert("RGB")


def test_an_intervention_acts_on_what_is_classified_plainly_few_images_or_many():
    torch.manual_seed(0)
    model, image = carded(ViT(ViTConfig(**SMALL))), photo()
    with torch.no_grad(), intervene(model, heads_off=[(1, 0)]):
        wanted = model(HALVES(image)[None]).max().item()
        assert asked(model, "logits", MANY) is None
        assert classify(image, model, device="cpu").best.logit == pytest.approx(wanted, abs=1e-5)
    assert classify(image, model, device="cpu").best.logit != pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "bf16"}, "move it to cpu and bf16 first, and call eval"),
        ({"fast": True}, "leave out fast, int8 and fp8"),
        ({"precision": "int8"}, "leave out fast, int8 and fp8"),
    ],
)
def test_hooks_of_a_model_refuse_a_run_of_its_copy(changes, message):
    model = carded(ViT(ViTConfig(**SMALL)))
    for hooks in (intervene(model, heads_off=[(1, 0)]), capture(model)):
        with pytest.raises(ValueError, match=f"act on this model, and this would run a copy of it: .*{message}"), hooks:
            classify(photo(), model, device="cpu", **changes)


def test_hooks_refuse_a_copy_for_evaluation_mode_and_one_by_optimize():
    model = carded(ViT(ViTConfig(**SMALL)))
    with intervene(model, heads_off=[(1, 0)]), pytest.raises(ValueError, match="run a copy of it"):
        optimize(model, backends=("eager",))
    with intervene(model.train(), heads_off=[(1, 0)]), pytest.raises(ValueError, match="call eval"):
        classify(photo(), model, device="cpu")


def test_hooks_of_another_model_or_of_none_let_a_copy_run():
    model, other = carded(ViT(ViTConfig(**SMALL))), ViT(ViTConfig(**SMALL))
    with capture(other), activate(Hook()):  # such as the one by which the explorer's jobs are cancelled
        classify(photo(), model, device="cpu", precision="bf16")
        optimize(model, backends=("eager",))
