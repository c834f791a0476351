"""torchvision's ViTs and ResNets: the same logits when read, and ViTs when written back."""

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torchvision.models.vision_transformer import VisionTransformer

from conftest import assert_same, noise
from vitreous.data.preprocess import HALF, Preprocess
from vitreous.models.resnet import ResNet, ResNetConfig, resnet_config
from vitreous.weights.card import Card
from vitreous.weights.convert import convert
from vitreous.weights.load import load
from vitreous.weights.safety import CheckpointError
from vitreous.weights.save import save

SMALL = {"image_size": 32, "patch_size": 8, "num_layers": 3, "num_heads": 4, "hidden_dim": 48, "mlp_dim": 96}


@pytest.mark.parametrize("extra", [{}, {"representation_size": 20}], ids=["linear_head", "tanh_head"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@torch.no_grad()
def test_logits_are_torchvisions_there_and_back(extra, suffix, tmp_path):
    theirs = noise(VisionTransformer(**SMALL, num_classes=7, **extra))
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    ours = load(tmp_path / "vit.pth", assume={"heads": 4})
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))

    path, _ = convert(ours, tmp_path / f"back{suffix}", to="torchvision")
    back = VisionTransformer(**SMALL, num_classes=7, **extra).eval()
    state = torch.load(path) if suffix == ".pth" else load_safetensors(path)
    back.load_state_dict(state, strict=True)
    assert_same(back(x), theirs(x))


def load_safetensors(path):
    from safetensors.torch import load_file

    return load_file(path)


@pytest.mark.slow
@torch.no_grad()
def test_a_full_vit_b_16_gives_torchvisions_logits(tmp_path):
    theirs = noise(torchvision.models.vit_b_16())
    torch.save(theirs.state_dict(), tmp_path / "vit_b_16.pth")
    ours = load(tmp_path / "vit_b_16.pth")
    x = torch.randn(1, 3, 224, 224)
    assert_same(ours(x), theirs(x))


@torch.no_grad()
def test_the_first_spelling_of_the_mlp_is_read(tmp_path):
    theirs = noise(VisionTransformer(**SMALL, num_classes=7))
    state = {
        k.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): v
        for k, v in theirs.state_dict().items()
    }
    torch.save(state, tmp_path / "vit.pth")
    x = torch.randn(2, 3, 32, 32)
    assert_same(load(tmp_path / "vit.pth", assume={"heads": 4})(x), theirs(x))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [18, 50])
@torch.no_grad()
def test_resnets_give_torchvisions_logits(depth, tmp_path):
    theirs = torchvision.models.get_model(f"resnet{depth}", num_classes=11).eval()
    for name, buffer in theirs.named_buffers():  # noise, but a variance is positive
        if "running" in name:
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    torch.save(theirs.state_dict(), tmp_path / "resnet.pth")
    ours = load(tmp_path / "resnet.pth")
    x = torch.randn(2, 3, 64, 64)
    assert ours.config.depth == depth
    assert_same(ours(x), theirs(x))
    assert load(tmp_path / "resnet.pth", classes=3)(x).shape == (2, 3)
    assert load(tmp_path / "resnet.pth", classes=0)(x).shape == (2, ours.config.feature_width)


@torch.no_grad()
def test_a_stem_of_small_kernels_is_assumed_and_reported(tmp_path):
    theirs = torchvision.models.resnet18(num_classes=5)
    theirs.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)  # and its max-pool is kept
    torch.save(theirs.state_dict(), tmp_path / "resnet.pth")
    model = load(tmp_path / "resnet.pth")
    assert "assumed stem = small (the first kernel is 3×3: no max-pool after it)" in model.card.report.remarks()
    save(model, tmp_path / "folder")
    again = load(tmp_path / "folder")  # whose config states it
    assert again.config.stem == "small"
    assert "stem" not in again.card.report.assumed


def test_a_resnets_training_script_states_its_preprocessing(tmp_path):
    args = {"mean": [0.1, 0.2, 0.3], "crop_pct": 0.5, "interpolation": "bicubic"}
    state = torchvision.models.resnet18(num_classes=5).state_dict()
    torch.save({"arch": "resnet18", "args": args, "state_dict": state}, tmp_path / "last.pth.tar")
    found = load(tmp_path / "last.pth.tar").card.preprocess
    usual = load_plain(state, tmp_path).card.preprocess
    assert (found.mean, found.std, found.resize) == ((0.1, 0.2, 0.3), usual.std, 448)
    assert (found.interpolation, usual.interpolation, usual.resize) == ("bicubic", "bilinear", 256)


def load_plain(state, folder, **options):
    torch.save(state, folder / "plain.pth")
    return load(folder / "plain.pth", **options)


@pytest.mark.parametrize("args", [{"gp": "max"}, {"bn_eps": 0.1}, {"model_kwargs": {"act_layer": "silu"}}], ids=str)
def test_a_resnet_with_other_arguments_is_refused(args, tmp_path):
    state = torchvision.models.resnet18(num_classes=5).state_dict()
    torch.save({"arch": "resnet18", "args": args, "state_dict": state}, tmp_path / "last.pth.tar")
    with pytest.raises(CheckpointError, match="its training script says resnet18 with"):
        load(tmp_path / "last.pth.tar")


@torch.no_grad()
def test_a_resnets_folder_of_timms_own_is_read(tmp_path):
    timm = pytest.importorskip("timm")
    theirs = timm.create_model("resnet18", num_classes=5).eval()
    timm.models.save_for_hf(theirs, tmp_path, safe_serialization=True)
    x = torch.randn(1, 3, 64, 64)
    assert_same(load(tmp_path)(x), theirs(x))


def test_a_resnet_without_its_last_stage_is_no_resnet14(tmp_path):
    state = torchvision.models.resnet18(num_classes=5).state_dict()
    part = {key: value for key, value in state.items() if not key.startswith(("layer4", "fc"))}
    with pytest.raises(CheckpointError, match="it has neither layer4 nor fc"):
        load_plain(part, tmp_path)
    model = load_plain(ResNet(ResNetConfig(14, 5)).state_dict(), tmp_path, classes=0)
    save(model, tmp_path / "ours")
    assert load(tmp_path / "ours").config.depth == 14
    save(load_plain(state, tmp_path), tmp_path / "whole")
    save_file(part, tmp_path / "whole/model.safetensors")
    with pytest.raises(CheckpointError, match="config.json says depth=18, and its tensors depth=14"):
        load(tmp_path / "whole")


def test_a_resnet_takes_the_image_size_that_is_asked_for_and_no_convention(tmp_path):
    state = torchvision.models.resnet18(num_classes=5).state_dict()
    model = load_plain(state, tmp_path, image_size=320)
    assert (model.config.size, model.card.preprocess.size) == ((320, 320), (320, 320))
    with pytest.raises(ValueError, match="a ResNet has no position embeddings to resize: leave resize='timm' out"):
        load_plain(state, tmp_path, image_size=320, resize="timm")


@torch.no_grad()
def test_a_saved_folder_is_resized_as_the_checkpoint_that_it_was_made_from(tmp_path):
    theirs = noise(VisionTransformer(**SMALL, num_classes=7))
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    save(load(tmp_path / "vit.pth", assume={"heads": 4}), tmp_path / "folder")
    x = torch.randn(2, 3, 64, 64)
    model = load(tmp_path / "vit.pth", assume={"heads": 4}, image_size=64)
    again = load(tmp_path / "folder", image_size=64)
    assert "torchvision's convention" in again.card.report.resized[0]
    assert torch.equal(again(x), model(x))


def test_a_resnet_without_its_head_keeps_nothing_of_it(tmp_path):
    model = ResNet(resnet_config("resnet18_small", classes=2)).eval()
    preprocess = Preprocess(size=(32, 32), resize=32, mean=HALF, std=HALF)
    model.card = Card("small", preprocess, ("cat", "dog"), family="ResNet", task="multilabel", thresholds=(0.25, 0.5))
    save(model, tmp_path / "model")
    assert load(tmp_path / "model").card.thresholds == (0.25, 0.5)
    for classes in (0, 5):
        card = load(tmp_path / "model", classes=classes).card
        assert (card.class_names, card.thresholds, card.task) == (None, None, "classify")
        assert card.head == ("classifier" if classes else "none")
