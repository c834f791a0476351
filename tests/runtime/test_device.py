"""Where a model runs, alone and as one of several."""

import logging

import pytest
import torch

from vitreous.runtime.device import pick_device, quieten_compiler


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.usefixtures("four_gpus")
def test_each_process_takes_the_gpu_of_its_number_on_the_machine(monkeypatch):
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda")
    for name, value in {"RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda:3")
    assert pick_device("cuda:1") == torch.device("cuda:1")
    assert pick_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(ValueError, match="cuda:4 is not available: torch sees 4 CUDA"):
        pick_device("auto")


@pytest.mark.parametrize("name", ["meta", "xla", "tpu"])
def test_other_types_of_devices_are_refused_and_those_taken_are_named(name):
    with pytest.raises(ValueError, match=f"device must be auto, cpu, cuda, cuda:N or mps, got '{name}'"):
        pick_device(name)


def test_the_compilers_warning_that_there_is_no_gpu_is_silenced_and_no_other(caplog):
    logger = logging.getLogger("torch.utils.cpp_extension")
    logger.addHandler(caplog.handler)  # torch's loggers pass nothing on
    try:
        for _ in range(2):
            quieten_compiler()
        logger.warning("No CUDA runtime is found, using CUDA_HOME='%s'", "/usr/local/cuda")
        logger.warning("another one")
    finally:
        logger.removeHandler(caplog.handler)
    assert set(caplog.messages) == {"another one"}
