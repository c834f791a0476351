"""Noisy Sapiens 2 models of timm's, and their authors' names for the same tensors, loaded here: the same outputs."""

import pytest
import timm
import torch
from originals import fill_with_noise, write_weights
from timm.models._hub import save_config_for_hf
from timm.models.eva import checkpoint_filter_fn

from conftest import assert_same
from vitreous.inside.capture import capture
from vitreous.speed.optimize import optimize
from vitreous.weights.load import load
from vitreous.weights.safety import CheckpointError

DEPTH = 18  # two blocks between the first and the last eight, whose heads share keys and values
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": DEPTH, "num_heads": 4}
SMALL |= {"num_kv_heads": [4] * 8 + [2] * 2 + [4] * 8}
BACK = (  # timm's names → the authors'
    *((".norm1.", ".ln1."), (".norm2.", ".ln2."), (".mlp.fc1.", ".ffn.w12."), (".mlp.fc2.", ".ffn.w3.")),
    *((f".attn.{x}_proj.", f".attn.w{x}.") for x in "qkv"),
    *((".gamma_1", ".attn.gamma.weight"), ("patch_embed.proj.", "patch_embed.projection.")),
)


@pytest.fixture
def theirs(tmp_path):
    """A noisy model in a Hub folder as timm writes it."""
    model = timm.create_model("vit_base_patch16_sapiens2", **SMALL).eval().requires_grad_(False)
    fill_with_noise(model.state_dict())
    model.pretrained_cfg = model.pretrained_cfg | {"input_size": (3, 32, 32)}
    save_config_for_hf(model, tmp_path / "config.json", model_args=SMALL)
    write_weights(model.state_dict(), tmp_path / "model.safetensors")
    return model


def authors_names(tensors):
    """Rename timm's tensors as the authors' file has them, with a mask token that only training uses."""
    found = {"mask_token": torch.zeros(1, 1, 48)}
    for key, value in tensors.items():
        for ours, name in BACK:
            key = key.replace(ours, name)
        found[{"norm.weight": "ln1.weight", "reg_token": "storage_tokens"}.get(key, key)] = value
    return found


@pytest.mark.slow
@torch.no_grad()
def test_shared_keys_and_values_give_timms_outputs_also_at_another_size_and_optimized(theirs, tmp_path):
    ours, x = load(tmp_path), torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))
    assert_same(ours.forward_features(x), theirs.forward_features(x))
    assert_same(optimize(ours, pixels=False, backends=("eager",))(x), theirs(x))
    with capture(ours, "k", layers=[8, 7]) as internals:
        assert torch.equal(ours(x), load(tmp_path)(x))
    pairs = internals["blocks.8.k"].unflatten(1, (2, 2))
    assert torch.equal(pairs[:, :, 0], pairs[:, :, 1])  # two neighbouring heads share their keys
    pairs = internals["blocks.7.k"].unflatten(1, (2, 2))
    assert not torch.equal(pairs[:, :, 0], pairs[:, :, 1])
    theirs.set_input_size((40, 24))
    x = torch.randn(2, 3, 40, 24)
    assert_same(load(tmp_path, image_size=(40, 24))(x), theirs(x))


@pytest.mark.slow
@torch.no_grad()
def test_the_authors_file_gives_what_timms_reader_makes_of_it(theirs, tmp_path):
    tensors = authors_names(theirs.state_dict())
    read = checkpoint_filter_fn(dict(tensors), theirs)
    assert {key: value.shape for key, value in read.items()} == {k: v.shape for k, v in theirs.state_dict().items()}
    torch.save(tensors, tmp_path / "sapiens2.pth")
    sizes = {"patch_size": 8, "width": 48, "depth": DEPTH, "heads": 4, "mlp_width": 192, "image_size": 32}
    ours = load(tmp_path / "sapiens2.pth", assume={"architecture": "vit_base_patch16_sapiens2"} | sizes)
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("blocks.3.attn.k_proj.weight", lambda x: x[:24], "as many heads as the queries"),
        ("blocks.8.attn.v_proj.bias", lambda x: x.repeat(2), "half the heads of the queries"),
        ("blocks.9.attn.k_proj.bias", None, "incomplete"),
    ],
)
def test_keys_and_values_of_other_heads_are_an_error(theirs, key, change, message, tmp_path):
    tensors = theirs.state_dict()
    tensors[key] = change(tensors[key]) if change else tensors.pop(key)[:0]
    if change is None:
        del tensors[key]
    write_weights(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)
