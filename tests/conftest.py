"""Shared by all tests: noise for models, the tolerance of "the same logits", and where real data may lie."""

import gc
import os
import signal
import sys
from importlib import resources
from pathlib import Path

import pytest
import torch
from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: Ctrl-C's tests want it back
    signal.signal(signal.SIGINT, signal.default_int_handler)

# compiled tests are kept even where the environment says otherwise: compiling 500 files takes each process 9 s
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("vitreous", deadline=None, max_examples=25)
settings.load_profile("vitreous")
torch.set_num_threads(1)  # two test processes on two cores

SHARED = Path(__file__).resolve().parents[2] / "shared"
SMALL = ("--model", "packaged:cifar10")  # where a test needs just a model: 32 px, 8×8 patches
CHELSEA = str(resources.files("skimage") / "data/chelsea.png")
VIT_TI = SHARED / "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k"


SLOW_DOCTESTS = tuple(
    f"vitreous.{name}" for name in ("api.benchmark", "api.compare", "api.concepts", "api.train", "speed.export")
)


def pytest_collection_modifyitems(items):
    """Mark doctests that take seconds, since a docstring has no decorator; without a GPU skip what needs one."""
    gpu = torch.cuda.is_available() or os.environ.get("VITREOUS_CUDA") == "1"
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.name.startswith(SLOW_DOCTESTS):
            item.add_marker(pytest.mark.slow)
        if not gpu and item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish():
    """Exempt all that was imported from garbage collection, which would otherwise look through it every few seconds."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # else extension modules complain at the end of what they did not free


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """Decoded images go to a temporary folder, never to the user's cache."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def shared():
    """Real weights and images, where they are at hand."""
    if not SHARED.is_dir():
        pytest.skip("the real images and weights are not on this machine")
    return SHARED


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory):
    """A small noisy ViT of 7 classes, saved; tests copy it before they change it."""
    from vitreous.models.vit import ViT
    from vitreous.models.vit_config import ViTConfig
    from vitreous.weights.save import save

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    save(noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=7))), path)
    return path


@torch.no_grad()
def noise(model):
    """Fill every tensor with noise: fresh heads are zero and fresh layer scales tiny, which hides mistakes."""
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            spread = 0.5 if tensor.dim() < 2 else tensor[0].numel() ** -0.5 if tensor.dim() != 3 else 0.5
            tensor.normal_(std=spread)
    return model.eval()


def assert_same(ours, theirs, factor=1e-4):
    """Equal but for rounding: within 1e-4 × max(1, largest value)."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    assert theirs.abs().max() > 1e-2, "the reference says almost nothing: the comparison would be empty"
    torch.testing.assert_close(ours, theirs, rtol=0, atol=factor * max(1.0, theirs.abs().max().item()))
