import pytest
import torch
from captum.attr import InputXGradient
from families import FAMILIES, family, images

from vitreous.inside.gradient_input import gradient_input


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_captums(name):
    model = family(name)
    x = images(model, 2)
    wanted = InputXGradient(model).attribute(x.clone().requires_grad_(), target=1)
    torch.testing.assert_close(gradient_input(model, x, 1), wanted.detach())


def test_frozen_models_and_callers_without_gradients_work():
    model = family("class token").requires_grad_(False)
    with torch.no_grad():
        assert gradient_input(model, images(model, 1)).abs().sum() > 0
