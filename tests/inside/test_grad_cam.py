import pytest
import torch
from families import FAMILIES, family, images

from vitreous.inside.capture import capture
from vitreous.inside.grad_cam import grad_cam
from vitreous.models.resnet import ResNet, ResNetConfig


@pytest.mark.parametrize("name", FAMILIES)
def test_cam_against_a_plain_backward_pass(name):
    model = family(name).double()
    x = images(model)
    patches = range(model.layout.prefix, model.layout.tokens)
    largest = 0.0
    for target in range(5):
        with capture(model, "norm1", layers=[-1], gradients=True) as seen:
            model(x)[:, target].sum().backward()
        tokens, gradient = seen["blocks.2.norm1"], seen.gradient("blocks.2.norm1")
        found = grad_cam(model, x, target)
        weights = sum(gradient[:, i] for i in patches) / len(patches)  # [b d]
        for i in patches:
            row, column = model.layout.patch(i)
            expected = (weights * tokens[:, i]).sum(dim=-1).clamp_min(0)
            torch.testing.assert_close(found[:, row, column], expected.detach())
        largest = max(largest, found.max().item())
    assert largest > 1e-3  # of some classes nothing is left above zero


def test_other_blocks_can_be_chosen():
    model = family("class token")
    x = images(model)
    assert not torch.equal(grad_cam(model, x, 1, layer=0), grad_cam(model, x, 1))
    assert torch.equal(grad_cam(model, x, 1, layer=2), grad_cam(model, x, 1))


def test_a_resnets_cam_is_what_its_linear_head_sees_in_each_place():
    """With average pooling and one linear layer Grad-CAM is CAM: the head's weights on each place's channels."""
    model = ResNet(ResNetConfig(18, classes=4)).eval().double()
    x = torch.randn(2, 3, 64, 96, dtype=torch.float64)
    places = {}
    with torch.no_grad():
        model.layer4.register_forward_hook(lambda module, inputs, output: places.update(seen=output.clone()))
        model(x)
    expected = torch.einsum("c, b c i j -> b i j", model.fc.weight[3], places["seen"]).clamp_min(0) / 6
    found = grad_cam(model, x, 3)
    assert found.shape == (2, 2, 3)
    assert found.max() > 0
    torch.testing.assert_close(found, expected.detach())


def test_no_hook_stays_on_a_resnet_even_after_an_error():
    model = ResNet(ResNetConfig(18, classes=4)).eval()
    x = torch.randn(1, 3, 32, 32)
    grad_cam(model, x)
    with pytest.raises(ValueError, match="class from 0 to 3"):
        grad_cam(model, x, 4)
    assert not model.layer4._forward_hooks
    assert all(parameter.grad is None for parameter in model.parameters())


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="only the internals of a ViT can be captured, got a Linear"):
        grad_cam(torch.nn.Linear(2, 2), torch.zeros(1, 2))
