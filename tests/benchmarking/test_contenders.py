"""Every contender gives our logits; unknown ones are named."""

import pytest
import torch
from tiny_settings import TINY, setting

from vitreous.benchmarking.contenders import CONTENDERS, Material, random_model, select_contenders
from vitreous.benchmarking.run import check

EAGER = [name for name, contender in CONTENDERS.items() if contender.mode == "eager"]


@pytest.mark.slow
@pytest.mark.parametrize("name", EAGER)
def test_every_contender_gives_our_logits(name, tmp_path):
    pytest.importorskip(CONTENDERS[name].library)
    x = torch.randn(2, 3, 32, 32)
    material = Material(setting(), tmp_path)
    with torch.inference_mode():
        logits = CONTENDERS[name].build(material)(x)
        assert check(name, logits, material.reference(x), "fp32") < 1e-5


def test_no_part_of_the_random_model_is_silent():
    model, x = random_model(TINY), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        truth = model(x)
        for parameter in model.parameters():
            kept = parameter.clone()
            parameter.mul_(1.1).add_(0.01)
            change = (model(x) - truth).abs().max() / truth.abs().max()
            parameter.copy_(kept)
            silent = parameter.shape == (3 * TINY.width,)  # a third of it, the keys' bias, cancels in the softmax
            assert change > (1e-5 if silent else 1e-4)


def test_runtimes_do_not_train():
    assert not {"openvino", "onnxruntime"} & set(select_contenders(("openvino", "onnxruntime"), ("eager",), train=True))


def test_an_unknown_library_or_mode_is_named():
    with pytest.raises(ValueError, match="no library is called 'keras': known are vitreous, timm"):
        select_contenders(("keras",), ("eager",))
    with pytest.raises(ValueError, match="no mode is called 'lazy'"):
        select_contenders((), ("lazy",))
