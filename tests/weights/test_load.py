"""What loading refuses, keeps and says: found by using the package as a stranger would."""

import json
from pathlib import Path

import pytest
import timm
import torch
import transformers

from conftest import assert_same, noise
from vitreous.data.preprocess import HALF, default_preprocess
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.runtime.device import pick_device
from vitreous.weights import load as loading
from vitreous.weights.card import Card
from vitreous.weights.class_names import imagenet_names
from vitreous.weights.load import load
from vitreous.weights.save import save

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 7}
X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def theirs():
    return noise(timm.create_model("vit_base_patch16_224", **SMALL))


def ours_with_half_statistics():
    from dataclasses import replace

    model = noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=3)))
    preprocess = replace(default_preprocess(model.config), mean=HALF, std=HALF)
    model.card = Card(name="mine", preprocess=preprocess, class_names=("cat", "dog", "owl"))
    return model


def test_an_assumption_is_kept_in_our_own_format(theirs, tmp_path):
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    first = load(tmp_path / "mine.pth", assume={"heads": 4})
    assert "preprocessing" in first.card.report.assumed
    save(first, tmp_path / "saved")
    assert "preprocessing" in load(tmp_path / "saved").card.report.assumed


@pytest.mark.parametrize("classes", [3, 1000])
def test_class_names_assumed_of_another_head_are_not_reported(classes, tmp_path):
    """A model that was fine-tuned from a checkpoint without names, as earlier versions wrote it."""
    model = ViT(ViTConfig(image_size=16, patch_size=8, width=16, depth=1, heads=2, classes=classes))
    own = ("cat", "dog", "owl")
    model.card = Card("x", default_preprocess(model.config), class_names=own if classes == 3 else imagenet_names())
    model.card.report.assumed["class names"] = "ImageNet-1k's names (there are 1,000 classes)"
    save(model, tmp_path)
    assert ("class names" in load(tmp_path).card.report.assumed) == (classes == 1000)


def test_a_model_of_ours_may_have_any_name(tmp_path):
    for name in ("samples", "swin-or-not", "hybrid"):
        save(ours_with_half_statistics(), tmp_path / name)
        assert load(tmp_path / name).card.class_names == ("cat", "dog", "owl")


def test_a_family_of_transformers_that_is_not_supported_is_named(tmp_path):
    config = transformers.OwlViTVisionConfig(
        hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8
    )
    transformers.OwlViTVisionModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="family 'owlvit_vision_model' is not supported"):
        load(tmp_path)


@torch.no_grad()
def test_a_training_modules_extras_are_ignored(theirs, tmp_path):
    state = {f"model.{key}": value for key, value in theirs.state_dict().items()}
    state |= {"loss.weight": torch.ones(7), "criterion.pos_weight": torch.ones(7)}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "lightning.ckpt")
    ours = load(tmp_path / "lightning.ckpt", assume={"heads": 4})
    assert_same(ours(X), theirs(X))
    assert set(ours.card.report.ignored) == {"loss.weight", "criterion.pos_weight"}


def test_averaged_weights_are_taken_and_reported(theirs, tmp_path):
    other = {key: torch.zeros_like(value) for key, value in theirs.state_dict().items()}
    torch.save({"model": other, "model_ema": theirs.state_dict()}, tmp_path / "mine.pth")
    ours = load(tmp_path / "mine.pth", assume={"heads": 4})
    assert_same(ours(X), theirs(X).detach())
    assert any("model_ema" in line for line in ours.card.report.remarks())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "fp16"}, "dtype must be torch.float32, torch.bfloat16 or another of floats, got 'fp16'"),
        ({"dtype": torch.int8}, "or another of floats, got torch.int8"),
        ({"test_time_registers": "1"}, "test_time_registers must be a whole number, 0 for none, got '1'"),
        ({"test_time_registers": -1}, "test_time_registers must be a whole number, 0 for none, got -1"),
        ({"resize": "nonsense"}, "resize must be one of google"),
        ({"image_size": 100_000}, "patches: 65,536 at most"),
        ({"image_size": 33}, r"try image_size=\(32, 32\)"),
        ({"assume": {"depht": 3}}, "nothing called depht can be assumed"),
        ({"assume": {"depth": 3}}, "you assume depth=3, but its tensors say depth=2"),
        ({"assume": {"heads": "4"}}, "heads must be of type int, got '4'"),
        ({"assume": {"architecture": "swin_tiny"}}, "'swin_tiny' is not a supported one of timm's"),
    ],
)
def test_a_wrong_option_is_refused(theirs, options, message, tmp_path):
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "mine.pth", **{"assume": {"heads": 4}} | options)


@pytest.fixture
def little_memory():
    """A limit of this process's address space, 64 MiB above what it holds."""
    resource = pytest.importorskip("resource")
    held = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmSize" in line)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, ((held << 10) + (64 << 20), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_file_larger_than_memory_is_not_called_damaged(tmp_path, little_memory):
    header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 28], "data_offsets": [0, 1 << 30]}}).encode()
    path = tmp_path / "mine.safetensors"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + (1 << 30))
    with pytest.raises(ValueError, match=r"mine\.safetensors: its 1\.0 GiB do not fit into memory") as error:
        load(path)
    assert "damaged" not in str(error.value)


@pytest.mark.parametrize(
    "error", [RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), MemoryError()]
)
def test_a_model_larger_than_memory_is_named(tmp_path, theirs, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(loading, "build_vit", fail)
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    with pytest.raises(ValueError, match=r"mine\.pth: the model does not fit into memory"):
        load(tmp_path / "mine.pth", assume={"heads": 4})


def test_a_part_beside_the_model_that_is_left_out_is_a_remark(tmp_path):
    state = ViT(ViTConfig(image_size=32, patch_size=8, width=192, depth=12, heads=3, classes=7)).state_dict()
    beside = {"decoder": {"weight": torch.ones(3, 2)}, "optimizer": {"state": torch.ones(3)}}
    torch.save({"model": state, **beside}, tmp_path / "mine.pth")
    report = load(tmp_path / "mine.pth", assume={"heads": 3}).card.report
    assert [line for line in report.remarks() if "left out" in line] == [
        "left out decoder, which lies beside the model in the file"
    ]
    assert report.ignored == ["decoder", "optimizer"]


def test_auto_is_a_device_and_those_taken_are_named():
    model = load("packaged:cifar10", device="auto")
    assert next(model.parameters()).device.type == pick_device("auto").type
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda, cuda:N or mps, got 'tpu'"):
        load("packaged:cifar10", device="tpu")


@pytest.mark.parametrize("name", [3, b"packaged", torch.nn.Linear(1, 1)])
def test_what_is_neither_a_name_nor_a_path_is_refused(name):
    with pytest.raises(TypeError, match=f"expected a name or a path, got a {type(name).__name__}"):
        load(name)
