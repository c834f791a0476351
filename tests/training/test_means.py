"""Other ways through the blocks (`recompute`, `fused`, `residual`): the same losses, the same bits after a break."""

import json

import pytest
import torch
from tiny_runs import bits, break_off, differing, make_images, parts_of, plain, tiny

from vitreous.data.datasets import open_dataset
from vitreous.models.vit import ViT, ViTConfig
from vitreous.speed import training_forward as learn
from vitreous.training import batch_size as fit
from vitreous.training import objective
from vitreous.training.build import build_model
from vitreous.training.loop import train
from vitreous.weights.save import save

WAYS = {
    "recompute": {"recompute": True},
    "fused": {"fused": True, "dropout": 0.0},
    "both": {"fused": True, "recompute": True, "dropout": 0.0},
    "bf16": {"precision": "bf16", "residual": "bf16", "fused": True, "recompute": True, "dropout": 0.0},
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("zoo") / "zoo")


def losses(folder):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return torch.tensor([[row["loss"], row["test_loss"]] for row in found], dtype=torch.float64)


def test_recomputing_gives_the_same_losses_whatever_is_dropped(zoo, tmp_path):
    config = {"optimizer": "adamw", "dropout": 0.2, "stochastic_depth": 0.2}
    train(tiny(zoo, **config), tmp_path / "usual")
    train(tiny(zoo, recompute=True, **config), tmp_path / "again")
    torch.testing.assert_close(losses(tmp_path / "usual"), losses(tmp_path / "again"), rtol=0, atol=1e-6)


def test_the_fused_way_gives_the_same_losses(zoo, tmp_path):
    train(plain(zoo), tmp_path / "usual")
    train(plain(zoo, fused=True), tmp_path / "fused")
    torch.testing.assert_close(losses(tmp_path / "usual"), losses(tmp_path / "fused"), rtol=0, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_broken_off_and_resumed_each_way_ends_with_the_same_bits(zoo, tmp_path, monkeypatch, way):
    config = tiny(zoo, save_every=0, **WAYS[way])
    train(config, tmp_path / "whole")
    for update in (2, 3):
        break_off(config, tmp_path / "run", monkeypatch, update)
    train(config, tmp_path / "run")
    assert differing(bits(tmp_path / "whole"), bits(tmp_path / "run")) == []


@pytest.mark.parametrize("way", [{"recompute": True}, {"fused": True}, {"precision": "bf16", "residual": "bf16"}])
def test_where_it_cannot_work_it_is_refused_by_name(zoo, way):
    name = list(way)[-1]
    with pytest.raises(ValueError, match=f"a ResNet has no {name}: leave it out"):
        parts_of(plain(zoo, model="resnet18_small", image_size=8, **way))
    with pytest.raises(ValueError, match=f"{name} works in one process and with parallel=ddp"):
        plain(zoo, parallel="fsdp", **way)
    with pytest.raises(ValueError, match=f"{name} works without a teacher alone"):
        plain(zoo, teacher="model", **way)


def test_the_fused_way_is_refused_where_it_would_not_be_taken(zoo):
    with pytest.raises(ValueError, match="fused works without dropout alone: leave out one or the other"):
        plain(zoo, fused=True, dropout=0.1)
    with pytest.raises(ValueError, match="fused works on plain layers, and LoRA puts its own around them"):
        plain(zoo, fused=True, policy="lora")


@pytest.mark.parametrize(
    "unlike",
    [{}, {"activation": "quick_gelu"}, {"activation": "gelu_tanh"}, {"swiglu": True}, {"qkv_bias": False},
     {"dropout": 0.2}, {"qk_norm": True}, {"layer_scale": 0.1}, {"pool": "mean"}],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_that_is_not_refused_takes_the_fused_way(zoo, tmp_path, unlike):
    shape = ViTConfig(image_size=8, patch_size=4, width=16, depth=2, heads=2, classes=3, **unlike)
    save(ViT(shape), tmp_path / "model")
    config = plain(zoo, model=str(tmp_path / "model"), pretrained=True, fused=True)
    if unlike.keys() & {"activation", "swiglu", "qkv_bias"}:
        with pytest.raises(ValueError, match=f"GELU networks .* this one has .*{next(iter(unlike))}=.*leave it out"):
            build_model(config, open_dataset(zoo), lambda line: None)
        return
    model = build_model(config, open_dataset(zoo), lambda line: None)
    assert all(map(learn._plain, model.blocks))


def test_what_is_tried_for_a_batch_size_is_what_will_be_run(zoo, monkeypatch):
    parts, asked = parts_of(plain(zoo, recompute=True)), []
    real = objective.logits_to_learn
    monkeypatch.setattr(objective, "logits_to_learn", lambda *a, **how: (asked.append(how), real(*a, **how))[1])
    assert fit.attempt(parts.model, parts.config, torch.device("cpu"), 4)
    assert asked == [{"fused": False, "recompute": True}]
