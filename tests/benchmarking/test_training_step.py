"""A training step changes every library's weights, also when it is recorded."""

from dataclasses import replace

import pytest
import torch
from tiny_settings import setting

from vitreous.benchmarking.contenders import CONTENDERS, Material
from vitreous.benchmarking.run import bytes_held
from vitreous.benchmarking.training_step import recorded, training_step

EAGER = [name for name, contender in CONTENDERS.items() if contender.mode == "eager"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EAGER if CONTENDERS[name].trains])
def test_a_training_step_moves_a_librarys_weights(name, tmp_path):
    pytest.importorskip(CONTENDERS[name].library)
    material = Material(setting(train=True), tmp_path)
    run = CONTENDERS[name].build(material)
    module = material.modules[CONTENDERS[name].library]
    before = [parameter.clone() for parameter in module.parameters()]
    training_step(run, module, torch.randn(2, 3, 32, 32), material.setting)()
    assert module.training
    moved = [not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True)]
    assert sum(moved) > 0.8 * len(moved)  # a step of 1e-7 is lost in the rounding of a few
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.cuda
def test_a_recorded_step_moves_weights_as_the_step_does(tmp_path):
    here = replace(setting(train=True), device=torch.device("cuda"))
    x, ended = torch.randn(2, 3, 32, 32, device="cuda"), []
    for captured in (False, True):
        material = Material(here, tmp_path)
        run = CONTENDERS["vitreous"].build(material)
        module = material.modules["vitreous"]
        before = [parameter.detach().clone() for parameter in module.parameters()]
        step = training_step(run, module, x, here)
        call = recorded(step, here.device) if captured else step
        for _ in range(5 if captured else 5 + 3):  # recording takes three
            call()
        ended.append(torch.cat([(new - old).flatten() for old, new in zip(before, module.parameters(), strict=True)]))
    assert ended[0].abs().max() > 0
    torch.testing.assert_close(*ended, rtol=0.05, atol=2e-7)


def test_a_model_that_trains_holds_its_weights_three_times():
    model = torch.nn.Linear(10, 10, bias=False)
    assert (bytes_held(model, False), bytes_held(model, True)) == (400, 1200)
