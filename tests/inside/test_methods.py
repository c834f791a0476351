from types import SimpleNamespace

import pytest
import torch
from families import FAMILIES, family, images

from vitreous.inside.methods import METHODS, choose_methods, patch_grid
from vitreous.inside.pixel_gradients import gradient_input
from vitreous.models.resnet import ResNet, ResNetConfig

QUICK = [name for name, method in METHODS.items() if method.forward <= 64]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_quick_method_gives_one_number_for_each_patch(name):
    model = family(name)
    x = images(model, 1)
    for method in QUICK:
        if method == "integrated gradients":
            continue  # needs a card, which says what black is
        heat = METHODS[method](model, x, 1)
        assert heat.shape == model.layout.grid
        assert heat.isfinite().all()


@pytest.mark.parametrize("name", [name for name in FAMILIES if "dense" in FAMILIES[name] or name == "class token"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("whole", [False, True])
def test_attention_is_that_of_single_precision_in_every_number_format(name, dtype, whole):
    model = family(name, whole=whole)
    x = images(model, 1)
    expected = METHODS["attention"](model, x)
    found = METHODS["attention"](model.to(dtype), x.to(dtype))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.05, atol=1e-3)


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if method.backward and "removal" not in name]
)
def test_a_target_may_be_made_in_inference_mode(name):
    model = family("class token")
    model.card = SimpleNamespace(preprocess=SimpleNamespace(mean=(0.5,) * 3, std=(0.5,) * 3))
    x = images(model, 1)
    expected = METHODS[name](model, x, 1)
    with torch.inference_mode():
        target = model(x).argmax(dim=-1) * 0 + 1
        torch.testing.assert_close(METHODS[name](model, x, target), expected)
    torch.testing.assert_close(METHODS[name](model, x, target), expected)


@pytest.mark.parametrize("size", [(15, 29), (15, 24), (14, 29)])  # of patches of 4×6: 3 rows or 5 divide them by chance
def test_pixels_are_summed_over_what_each_patch_reads_where_some_fill_none(size):
    model = family("attention pool", image_size=size)
    x = images(model, 1)
    parts, heat = gradient_input(model, x, 1)[0].sum(dim=0), METHODS["gradient × input"](model, x, 1)
    for patch in range(model.layout.patches):
        left, top, right, bottom = model.layout.box(patch)
        torch.testing.assert_close(heat.flatten()[patch], parts[top:bottom, left:right].sum())
    torch.testing.assert_close(heat.sum(), parts.sum())  # pixels that fill no patch have no part
    for name in ("SmoothGrad", "occlusion"):
        assert METHODS[name](model, x, 1).shape == model.layout.grid
    assert METHODS["RISE"].compute(model, x, 1).shape == (1, *model.layout.grid)


@pytest.mark.slow
def test_a_resnets_methods_share_one_grid():
    model = ResNet(ResNetConfig(18, classes=4, stem="small")).eval()
    x = torch.randn(1, 3, 32, 32)
    chosen = choose_methods((), model)
    assert "relevance" not in chosen
    for name in ("CAM", "Grad-CAM++", "gradient × input", "occlusion", "removal-64", "centre"):
        assert chosen[name](model, x, 1).shape == patch_grid(model, x) == (4, 4)


def test_the_number_of_passes_is_as_stated():
    model = family("class token")
    x, rows = images(model, 1), []
    handle = model.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    for name in ("relevance", "attention", "rollout", "CAM", "gradient × input", "pruned gradients", "SmoothGrad"):
        rows.clear()
        METHODS[name](model, x, 1)
        assert sum(rows) == METHODS[name].forward, name
    handle.remove()


def test_unknown_and_unsuitable_methods_are_refused():
    with pytest.raises(ValueError, match="no method is called 'magic': the methods are removal-1024"):
        choose_methods(("magic",), family("class token"))
    with pytest.raises(ValueError, match="needs the tokens of a ViT"):
        choose_methods(("rollout",), ResNet(ResNetConfig(18, classes=4)))
