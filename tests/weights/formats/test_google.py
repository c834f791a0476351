"""Google's .npz in its three spellings, timm's own loader as the reference."""

import numpy as np
import pytest
import timm
import torch

from conftest import assert_same, noise
from vitreous.weights.convert import convert
from vitreous.weights.load import load

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "num_classes": 7}


def arrays(seed=0, spelling="original", class_token=True):
    """A noisy checkpoint as JAX would hold it."""
    draw = np.random.default_rng(seed)

    def noisy(*shape):
        return (draw.standard_normal(shape) * (0.5 if len(shape) < 2 else 0.15)).astype(np.float32)

    attention, norm2, mlp = (1, 2, 3) if spelling == "original" else (0, 1, 0)
    width, heads, each, hidden = 48, 4, 12, 192
    found = {
        "embedding/kernel": noisy(8, 8, 3, width),
        "embedding/bias": noisy(width),
        "Transformer/encoder_norm/scale": noisy(width),
        "Transformer/encoder_norm/bias": noisy(width),
        "head/kernel": noisy(width, 7),
        "head/bias": noisy(7),
    }
    if class_token:
        found["cls"] = noisy(1, 1, width)
    positions = "Transformer/posembed_input/pos_embedding" if spelling == "original" else "pos_embedding"
    found[positions] = noisy(1, 16 + class_token, width)
    for n in range(3):
        block = {
            "LayerNorm_0/scale": noisy(width),
            "LayerNorm_0/bias": noisy(width),
            f"LayerNorm_{norm2}/scale": noisy(width),
            f"LayerNorm_{norm2}/bias": noisy(width),
            f"MlpBlock_{mlp}/Dense_0/kernel": noisy(width, hidden),
            f"MlpBlock_{mlp}/Dense_0/bias": noisy(hidden),
            f"MlpBlock_{mlp}/Dense_1/kernel": noisy(hidden, width),
            f"MlpBlock_{mlp}/Dense_1/bias": noisy(width),
            f"MultiHeadDotProductAttention_{attention}/out/kernel": noisy(heads, each, width),
            f"MultiHeadDotProductAttention_{attention}/out/bias": noisy(width),
        }
        for name in ("query", "key", "value"):
            block[f"MultiHeadDotProductAttention_{attention}/{name}/kernel"] = noisy(width, heads, each)
            block[f"MultiHeadDotProductAttention_{attention}/{name}/bias"] = noisy(heads, each)
        found |= {f"Transformer/encoderblock_{n}/{key}": value for key, value in block.items()}
    if spelling == "stacked":
        names = {key.split("/", 2)[2] for key in found if "encoderblock_" in key}
        for name in names:
            stack = np.stack([found.pop(f"Transformer/encoderblock_{n}/{name}") for n in range(3)])
            found[f"Transformer/encoderblock/{name}"] = stack
    return found


SPELLINGS = [("original", ""), ("original", "opt/target/")] + [  # only big_vision writes under params/
    (spelling, prefix)
    for spelling in ("big_vision", "stacked")
    for prefix in ("", "opt/target/", "params/", "params/img/")
]


@pytest.mark.slow
@pytest.mark.parametrize(("spelling", "prefix"), SPELLINGS)
@torch.no_grad()
def test_logits_are_those_of_timms_loader(spelling, prefix, tmp_path):
    path = tmp_path / "vit.npz"
    np.savez(path, **{prefix + key: value for key, value in arrays(spelling=spelling).items()})
    theirs = noise(timm.create_model("vit_base_patch16_224", **SMALL))
    theirs.load_pretrained(str(path), prefix)
    ours = load(path)
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))
    assert ours.config.heads == 4
    assert "heads" not in ours.card.report.assumed  # the arrays' shapes tell


@pytest.mark.parametrize("stacked", [False, True])
@torch.no_grad()
def test_siglips_pool_is_read_as_timm_reads_it(stacked, tmp_path):
    found = arrays(spelling="stacked" if stacked else "big_vision", class_token=False)
    found |= {f"MAPHead_0/{key}": value for key, value in pool().items()}
    found = {key: value for key, value in found.items() if not key.startswith("head/")}
    extra = {"params/txt/Embed_0/embedding": np.zeros((5, 48)), "params/t": np.zeros(1), "params/b": np.zeros(1)}
    np.savez(tmp_path / "siglip.npz", **{f"params/img/{key}": value for key, value in found.items()}, **extra)
    ours = load(tmp_path / "siglip.npz")
    theirs = timm.create_model(
        "vit_base_patch16_siglip_224", **SMALL | {"num_classes": 0}, act_layer="gelu_tanh"
    ).eval()
    np.savez(
        tmp_path / "plain.npz",
        **arrays(spelling="big_vision", class_token=False)
        | {f"MAPHead_0/{key}": value for key, value in pool().items()},
    )
    theirs.load_pretrained(str(tmp_path / "plain.npz"))  # timm reads neither the tower's prefix nor stacked blocks
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))
    assert (ours.config.heads, ours.config.pool_heads) == (4, 4)
    assert ours.card.report.assumed["activation"].startswith("gelu_tanh")


def pool():
    """A noisy attention pool as big_vision holds it."""
    draw = np.random.default_rng(1)
    attention = {f"{name}/kernel": (48, 4, 12) for name in ("query", "key", "value")} | {"out/kernel": (4, 12, 48)}
    attention |= {f"{name}/bias": (4, 12) for name in ("query", "key", "value")} | {"out/bias": (48,)}
    shapes = {"probe": (1, 1, 48), "LayerNorm_0/scale": (48,), "LayerNorm_0/bias": (48,)}
    shapes |= {f"MultiHeadDotProductAttention_0/{key}": shape for key, shape in attention.items()}
    shapes |= {"MlpBlock_0/Dense_0/kernel": (48, 192), "MlpBlock_0/Dense_0/bias": (192,)}
    shapes |= {"MlpBlock_0/Dense_1/kernel": (192, 48), "MlpBlock_0/Dense_1/bias": (48,)}
    return {key: (draw.standard_normal(shape) * 0.2).astype(np.float32) for key, shape in shapes.items()}


@torch.no_grad()
def test_written_npz_is_read_by_timm(tmp_path):
    theirs = noise(timm.create_model("vit_base_patch16_224", **SMALL))
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    convert(load(tmp_path / "vit.pth", assume={"heads": 4}), tmp_path / "vit.npz", to="google")
    back = noise(timm.create_model("vit_base_patch16_224", **SMALL))
    back.load_pretrained(str(tmp_path / "vit.npz"))
    x = torch.randn(2, 3, 32, 32)
    assert_same(back(x), theirs(x))
    assert_same(load(tmp_path / "vit.npz")(x), theirs(x))


@torch.no_grad()
def test_the_pre_training_head_is_kept(tmp_path):
    found = arrays()
    found["pre_logits/kernel"] = np.random.default_rng(1).standard_normal((48, 20)).astype(np.float32)
    found["pre_logits/bias"] = np.ones(20, np.float32)
    found["head/kernel"] = np.random.default_rng(2).standard_normal((20, 7)).astype(np.float32)
    np.savez(tmp_path / "vit.npz", **found)
    ours = load(tmp_path / "vit.npz")
    x = torch.randn(2, 3, 32, 32)
    hidden = torch.tanh(ours.features(x) @ torch.from_numpy(found["pre_logits/kernel"]) + 1)
    expected = hidden @ torch.from_numpy(found["head/kernel"]) + torch.from_numpy(found["head/bias"])
    assert_same(ours(x), expected)
    convert(ours, tmp_path / "back.npz", to="google")
    assert_same(load(tmp_path / "back.npz")(x), expected)


@pytest.mark.slow
@torch.no_grad()
def test_a_full_vit_tiny_npz_gives_timms_logits(tmp_path):
    theirs = noise(timm.create_model("vit_tiny_patch16_224"))
    torch.save(theirs.state_dict(), tmp_path / "vit_tiny_patch16_224.pth")
    convert(load(tmp_path / "vit_tiny_patch16_224.pth"), tmp_path / "Ti_16.npz", to="google")
    ours = load(tmp_path / "Ti_16.npz")
    x = torch.randn(1, 3, 224, 224)
    assert_same(ours(x), theirs(x))
