"""MobileCLIP's stem by its definition, and a noisy ViT with it against timm's."""

import timm
import torch
import torch.nn.functional as F
from families import family, images
from originals import fill_with_noise
from safetensors.torch import save_file
from timm.models._hub import save_config_for_hf

from conftest import assert_same
from vitreous.models.conv_stem import ConvStem
from vitreous.weights.load import load


@torch.no_grad()
def test_it_is_a_matrix_over_4_by_4_pixels_and_one_over_2_by_2_of_them():
    stem, x = ConvStem(3, 8), torch.randn(2, 3, 16, 24)
    first, second = stem
    patches = F.unfold(x, 4, stride=4)  # [b 3·4·4 n]
    y = F.gelu(first.weight.flatten(1) @ patches + first.bias[:, None]).unflatten(2, (4, 6))
    y = F.gelu(second.weight.flatten(1) @ F.unfold(y, 2, stride=2) + second.bias[:, None]).unflatten(2, (2, 3))
    torch.testing.assert_close(stem(x), y)
    assert stem.filters is first.weight


@torch.no_grad()
def test_a_patch_does_not_see_its_neighbours():
    model = family("convolutional stem")
    x = images(model, 1)
    before = model.patch_embed(x)
    x[..., :16, :16] += 1
    changed = (model.patch_embed(x) != before).any(dim=-1)[0]
    assert changed.tolist() == [True] + [False] * 11


@torch.no_grad()
def test_mobileclips_vit_has_timms_logits_also_of_another_size(tmp_path):
    theirs = timm.create_model("vit_base_mci_224", depth=2, img_size=64, num_classes=7).eval()
    fill_with_noise(theirs.state_dict())
    theirs.pretrained_cfg = theirs.pretrained_cfg | {"input_size": (3, 64, 64), "num_classes": 7}
    save_config_for_hf(theirs, tmp_path / "config.json", model_args={"depth": 2, "img_size": 64})
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    x = torch.randn(2, 3, 64, 64)
    assert_same(load(tmp_path)(x), theirs(x), 2e-5)
    theirs.set_input_size((48, 80))
    x = torch.randn(1, 3, 48, 80)
    assert_same(load(tmp_path, image_size=(48, 80))(x), theirs(x))
