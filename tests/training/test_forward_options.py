"""The forward options `recompute`, `fused` and `residual`: the same losses, the same bits after a resume."""

import json
import logging
from dataclasses import replace

import pytest
import torch
from tiny_runs import LogKeeper, bits, break_off, differing, parts_of, plain, tiny
from torch._dynamo.utils import counters

from conftest import noise
from vitreous.data.datasets import open_dataset
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.speed import onednn, training_forward
from vitreous.speed.training_forward import has_narrow_heads
from vitreous.training import batch_size, model, setup
from vitreous.training.loop import train
from vitreous.training.model import build_model
from vitreous.training.setup import set_up_run
from vitreous.weights.save import save

OPTIONS = {
    "recompute": {"recompute": True},
    "fused": {"fused": True, "dropout": 0.0},
    "both": {"fused": True, "recompute": True, "dropout": 0.0},
    "bf16": {"precision": "bf16", "residual": "bf16", "fused": True, "recompute": True, "dropout": 0.0},
}


def losses(folder):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return torch.tensor([[row["loss"], row["test_loss"]] for row in found], dtype=torch.float64)


@pytest.mark.slow
def test_recomputing_gives_the_same_losses_whatever_is_dropped(zoo, tmp_path):
    config = {"optimizer": "adamw", "dropout": 0.2, "stochastic_depth": 0.2}
    train(tiny(zoo, **config), tmp_path / "usual")
    train(tiny(zoo, recompute=True, **config), tmp_path / "again")
    torch.testing.assert_close(losses(tmp_path / "usual"), losses(tmp_path / "again"), rtol=0, atol=1e-6)


def test_fused_kernels_give_the_same_losses(zoo, tmp_path):
    train(plain(zoo), tmp_path / "usual")
    train(plain(zoo, fused=True), tmp_path / "fused")
    torch.testing.assert_close(losses(tmp_path / "usual"), losses(tmp_path / "fused"), rtol=0, atol=1e-6)


def test_a_run_says_that_fused_is_for_a_gpu(zoo):
    heard = LogKeeper()
    set_up_run(plain(zoo, fused=True), None, heard)
    assert "fused is for CUDA: on a CPU it gives the same results in more time" in heard.lines


@pytest.fixture
def products(monkeypatch):
    """Have oneDNN multiply whatever the processor and however small the layer, and count its products."""
    if not onednn.onednn_available():
        pytest.skip("this torch has no oneDNN")
    counted, real = [], onednn._product
    monkeypatch.setattr(onednn, "onednn_ahead", lambda: True)
    monkeypatch.setattr(onednn, "LARGE", 0)
    monkeypatch.setattr(onednn, "_product", lambda *given: (counted.append(1), real(*given))[1])
    return counted


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"policy": "attention"}, {"policy": "head"}, {"recompute": True}])
def test_a_run_by_onednn_has_the_same_losses_and_resumes_with_the_same_bits(
    zoo, tmp_path, monkeypatch, products, options
):
    config = tiny(zoo, save_every=0, **options)
    train(config, tmp_path / "whole")
    assert products
    for update in (2, 3):
        break_off(config, tmp_path / "run", monkeypatch, update)
    train(config, tmp_path / "run")
    assert differing(bits(tmp_path / "whole"), bits(tmp_path / "run")) == []
    monkeypatch.setattr(onednn, "onednn_ahead", lambda: False)
    products.clear()
    train(config, tmp_path / "usual")
    assert not products
    torch.testing.assert_close(losses(tmp_path / "whole"), losses(tmp_path / "usual"), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_lora_trains_by_onednn(zoo, tmp_path, products):
    pytest.importorskip("peft")
    train(tiny(zoo, policy="lora"), tmp_path / "run")
    assert products


@pytest.mark.slow
def test_narrow_heads_are_recomputed_by_the_attention_of_the_forward_pass(zoo, tmp_path):
    narrow = tiny(zoo, model="vit_pico_patch2_8:heads=8")
    assert has_narrow_heads(parts_of(narrow).model)
    train(narrow, tmp_path / "kept")
    train(replace(narrow, recompute=True), tmp_path / "again")
    torch.testing.assert_close(losses(tmp_path / "kept"), losses(tmp_path / "again"), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_broken_off_and_resumed_with_each_option_ends_with_the_same_bits(zoo, tmp_path, monkeypatch, name):
    config = tiny(zoo, save_every=0, **OPTIONS[name])
    train(config, tmp_path / "whole")
    for update in (2, 3):
        break_off(config, tmp_path / "run", monkeypatch, update)
    train(config, tmp_path / "run")
    assert differing(bits(tmp_path / "whole"), bits(tmp_path / "run")) == []


@pytest.mark.parametrize("option", [{"recompute": True}, {"fused": True}, {"precision": "bf16", "residual": "bf16"}])
def test_an_option_that_cannot_work_is_refused_by_name(zoo, option):
    name = list(option)[-1]
    with pytest.raises(ValueError, match=f"a ResNet has no {name}: leave it out"):
        parts_of(plain(zoo, model="resnet18_small", image_size=8, **option))
    with pytest.raises(ValueError, match=f"{name} does not work with parallel=fsdp"):
        plain(zoo, parallel="fsdp", **option)
    with pytest.raises(ValueError, match=f"{name} does not work with a teacher"):
        plain(zoo, teacher="model", **option)


def test_fused_is_refused_if_its_kernels_would_not_be_used(zoo):
    with pytest.raises(ValueError, match="fused does not work with dropout: leave out one or the other"):
        plain(zoo, fused=True, dropout=0.1)
    with pytest.raises(ValueError, match="fused does not work with LoRA"):
        plain(zoo, fused=True, policy="lora")


@pytest.mark.parametrize(
    "unlike",
    [{}, {"activation": "quick_gelu"}, {"activation": "gelu_tanh"}, {"swiglu": True}, {"qkv_bias": False},
     {"dropout": 0.2}, {"qk_norm": True}, {"layer_scale": 0.1}, {"pool": "mean"}],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_that_is_not_refused_takes_the_fused_kernels(zoo, tmp_path, unlike):
    shape = ViTConfig(image_size=8, patch_size=4, width=16, depth=2, heads=2, classes=3, **unlike)
    save(ViT(shape), tmp_path / "model")
    config = plain(zoo, model=str(tmp_path / "model"), pretrained=True, fused=True)
    if unlike.keys() & {"activation", "swiglu", "qkv_bias"}:
        with pytest.raises(ValueError, match=f"GELU network .* this one has .*{next(iter(unlike))}=.*leave it out"):
            build_model(config, open_dataset(zoo), lambda line: None)
        return
    model = build_model(config, open_dataset(zoo), lambda line: None)
    assert all(map(training_forward._plain, model.blocks))


def test_what_is_tried_for_a_batch_size_is_what_will_be_run(zoo, monkeypatch):
    parts, asked = parts_of(plain(zoo, recompute=True)), []
    real = model.training_logits
    monkeypatch.setattr(model, "training_logits", lambda *a, **how: (asked.append(how), real(*a, **how))[1])
    assert batch_size.fits_memory(parts.model, parts.config, torch.device("cpu"), 4)
    assert asked == [{"residual": None, "fused": False, "recompute": True, "in_parts": False}]


@pytest.mark.slow
def test_other_networks_multiply_by_onednn_too(zoo, products):
    parts = parts_of(plain(zoo, model="resnet18_small", image_size=32))
    products.clear()
    model.choose_forward(parts.model, torch.device("cpu"))(parts.model, torch.randn(2, 3, 32, 32))
    assert len(products) == 1  # its head


def test_compiling_a_run_is_quiet_about_gpus(zoo, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(setup, "lacks_compiler", lambda device: False)
    logger = logging.getLogger("torch.utils.cpp_extension")
    monkeypatch.setattr(logger, "filters", [])
    parts_of(plain(zoo, compile=True))
    assert len(logger.filters) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("rope", "in_parts"), [("none", True), ("axial", False)])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_fused_network_is_compiled_in_parts_or_as_a_whole_and_never_both(zoo, products, rope, in_parts, recompute):
    name = f"vit_femto_patch4_32:heads=2,pool=mean,rope={rope}"
    config = plain(zoo, model=name, compile=True, fused=True, recompute=recompute)
    parts = parts_of(config)  # computes steps
    forward = parts.train_step.objective.compute_logits
    assert getattr(forward, "keywords", {}).get("in_parts", False) == in_parts
    assert (parts.train_step.objective._compiled_call_impl is None) == in_parts
    assert not products  # compiled code keeps torch's


@pytest.mark.slow
def test_a_compiled_step_with_fused_gradients_is_kept_for_the_next_run(zoo, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    config, found = plain(zoo, model="vit_femto_patch4_32:heads=2", compile=True, fused=True), []
    for _ in range(2):
        counters.clear()
        parts_of(config)  # computes steps
        found.append({name: n for name, n in counters["aot_autograd"].items() if name.startswith("autograd_cache")})
    first, second = found
    assert set(first) == {"autograd_cache_miss", "autograd_cache_saved"}
    assert second == {"autograd_cache_hit": first["autograd_cache_miss"]}


SHORT = "vit_femto_patch4_32:heads=1,class_token=false,pool=mean"  # 64 tokens, and a head that our kernels multiply


def gradients(config):
    """Of one step from noise: a fresh head sends no gradient back."""
    parts = parts_of(config)
    fixed = [buffer.clone() for buffer in parts.model.buffers()]
    noise(parts.model).train()
    for buffer, value in zip(parts.model.buffers(), fixed, strict=True):
        buffer.copy_(value)  # a rotation is sines and cosines: the halves of noise would differ
    batch = next(parts.train_source.epoch(0, config.batch_size))
    parts.train_step(batch, 0, 0, 1.0)
    return {name: parameter.grad.float().cpu() for name, parameter in parts.model.named_parameters()}


def assert_same_gradients(config, **options):
    usual, ours = gradients(config), gradients(replace(config, **options))
    for name, expected in usual.items():
        if name.endswith("qkv.bias"):  # the keys' bias has no gradient but rounding
            expected, ours[name] = (torch.cat([bias[:32], bias[64:]]) for bias in (expected, ours[name]))
        assert (ours[name] - expected).norm() < 0.03 * expected.norm(), name


@pytest.mark.slow
@pytest.mark.parametrize("rope", ["none", "dinov3"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cpu, as on a GPU", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_step_of_short_attention_has_the_gradients_of_the_plain_step(zoo, device, compiled, rope, monkeypatch):
    if device == "cpu, as on a GPU":  # with what replaces the kernel where there is no Triton
        monkeypatch.setattr(training_forward, "has_triton", lambda device: True)
        monkeypatch.setattr(training_forward, "_multiplies_bf16", lambda device: True)
    on = torch.device(device.partition(",")[0])
    config = plain(zoo, model=f"{SHORT},rope={rope}", device=on.type, precision="bf16", clip=0.0)
    assert training_forward.takes_kernel(parts_of(config).model, on, torch.bfloat16) == (device != "cpu")
    assert_same_gradients(config, fused=True, residual="bf16", compile=compiled)


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"recompute": True}], ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_tokens_in_bf16_leave_the_gradients_of_layer_norms_as_they_are(zoo, device, options):
    config = plain(zoo, model="vit_femto_patch4_32:heads=1", device=device, precision="bf16", clip=0.0)
    assert_same_gradients(config, residual="bf16", **options)


@pytest.fixture
def deterministic_switched_off():
    yield
    torch.use_deterministic_algorithms(False)  # a run switches it on for its process


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fused", "bf16"])
@pytest.mark.usefixtures("deterministic_switched_off")
def test_on_a_gpu_a_run_broken_off_and_resumed_ends_with_the_same_bits(zoo, tmp_path, monkeypatch, name):
    options = {**OPTIONS[name], "device": "cuda", "deterministic": True, "model": f"{SHORT},rope=dinov3"}
    config = tiny(zoo, save_every=0, **options)
    train(config, tmp_path / "whole")
    for update in (2, 3):
        break_off(config, tmp_path / "run", monkeypatch, update)
    train(config, tmp_path / "run")
    assert differing(bits(tmp_path / "whole"), bits(tmp_path / "run")) == []
