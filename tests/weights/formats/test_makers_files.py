"""Files as their makers publish them: DINOv3, EVA-02, EVA-CLIP and BEiT; timm's own converters are the reference.

Each is made from a noisy timm model by undoing what timm's converter does, and the converter must give that model back.
"""

import pytest
import timm
import torch
from originals import fill_with_noise, to_dinov3
from timm.models.beit import checkpoint_filter_fn as read_beit
from timm.models.eva import checkpoint_filter_fn as read_eva

from conftest import assert_same
from vitreous.weights.load import load
from vitreous.weights.safety import CheckpointError

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "num_classes": 7}
SIZES = {"patch_size": 8, "width": 48, "depth": 3, "heads": 4}


def made(name, **changes):
    model = timm.create_model(name, **SMALL | changes).eval().requires_grad_(False)
    fill_with_noise(model.state_dict())
    return model


def check_converter(convert, tensors, model):
    """See that timm's converter makes the model's own tensors of the maker's."""
    read, wanted = convert(dict(tensors), model), model.state_dict()
    assert all(torch.equal(read[key], value) for key, value in wanted.items()), set(wanted) ^ set(read)


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3_qkvb", "vit_small_plus_patch16_dinov3_qkvb"])
@torch.no_grad()
def test_dinov3s_own_file_gives_timms_tokens(name, tmp_path):
    theirs = made(name, num_classes=0, global_pool="token")
    tensors = to_dinov3(theirs.state_dict())
    check_converter(read_eva, tensors, theirs)
    torch.save(tensors, tmp_path / "dinov3_vits16_pretrain.pth")
    ours, x = load(tmp_path / "dinov3_vits16_pretrain.pth", image_size=32), torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))
    assert_same(ours.forward_features(x), theirs.forward_features(x))
    assert (ours.config.heads, ours.config.rope) == (4, "dinov3")  # both from the periods in the file
    with pytest.raises(CheckpointError, match="pass --assume image_size"):
        load(tmp_path / "dinov3_vits16_pretrain.pth")


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("rope_embed.periods", lambda x: x * 2, "are not DINOv3's"),
        ("rope_embed.periods", None, "no rope_embed.periods"),
        ("blocks.1.attn.qkv.bias_mask", lambda x: 1 - x, "1 for queries and values, 0 for keys"),
        ("blocks.1.attn.qkv.bias", None, "incomplete"),
        ("blocks.1.attn.qkv.bias_mask", None, "incomplete"),
        ("storage_tokens", None, "registers=4, but its tensors say registers=0"),
        ("cls_norm.weight", lambda x: torch.ones(48), "does not: cls_norm.weight"),
    ],
)
def test_a_dinov3_file_with_other_parts_is_an_error(key, change, message, tmp_path):
    tensors = to_dinov3(made("vit_small_patch16_dinov3_qkvb", num_classes=0).state_dict())
    value = tensors.pop(key, None)
    torch.save(tensors | ({key: change(value)} if change else {}), tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "model.pth", image_size=32)


EVA_NAMES = {"mlp.norm": "mlp.ffn_ln", "attn.norm": "attn.inner_attn_ln"}
EVA_NAMES |= {"mlp.fc1_g": "mlp.w1", "mlp.fc1_x": "mlp.w2", "mlp.fc2": "mlp.w3"}
EVA_NAMES |= {"attn.q_proj.bias": "attn.q_bias", "attn.v_proj.bias": "attn.v_bias"}


def eva_names(model, side=4, reference=16):
    """timm's EVA-02 as baaivision/EVA saves it, with the rotation of the whole and of each block."""
    found = {}
    for key, value in model.state_dict().items():
        for ours, theirs in EVA_NAMES.items():
            key = key.replace(ours, theirs)
        found[key] = value
    half = 48 // 4 // 2
    rates = 10000.0 ** -(torch.arange(0, half, 2) / half)
    angles = (torch.arange(side)[:, None] / side * reference * rates).repeat_interleave(2, dim=1)  # [side k/2]
    angles = torch.cat([angles[:, None].expand(-1, side, -1), angles[None].expand(side, -1, -1)], dim=-1).flatten(0, 1)
    for place in ("rope", *(f"blocks.{n}.attn.rope" for n in range(3))):
        found |= {f"{place}.freqs_cos": angles.cos(), f"{place}.freqs_sin": angles.sin()}
    return found


@torch.no_grad()
def test_eva02s_own_file_gives_timms_logits(tmp_path):
    theirs = made("eva02_base_patch14_224")
    tensors = eva_names(theirs)
    check_converter(read_eva, tensors, theirs)
    torch.save({"module": tensors}, tmp_path / "eva02_B_ft.pt")
    ours = load(
        tmp_path / "eva02_B_ft.pt", assume={"architecture": "eva02_base_patch14_224"} | SIZES | {"mlp_width": 128}
    )
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))


@torch.no_grad()
def test_eva_clips_vision_tower_gives_timms_embedding(tmp_path):
    theirs = made("eva02_base_patch16_clip_224")
    tensors = {f"visual.{key}": value for key, value in eva_names(theirs).items()}
    check_converter(read_eva, tensors, theirs)
    tensors |= {"logit_scale": torch.zeros(()), "text.token_embedding.weight": torch.zeros(5, 4)}
    torch.save(tensors, tmp_path / "EVA02_CLIP_B.pt")
    assume = {"architecture": "eva02_base_patch16_clip_224"} | SIZES | {"mlp_width": 128}
    ours, x = load(tmp_path / "EVA02_CLIP_B.pt", assume=assume), torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))


def test_a_rotation_that_eva_does_not_have_is_an_error(tmp_path):
    tensors = eva_names(made("eva02_base_patch14_224"))
    tensors["rope.freqs_cos"] = tensors["rope.freqs_cos"].flip(1)
    torch.save(tensors, tmp_path / "eva02.pt")
    with pytest.raises(CheckpointError, match="not EVA-02's rotation"):
        load(tmp_path / "eva02.pt", assume={"architecture": "eva02_base_patch14_224"} | SIZES)


@pytest.mark.parametrize("shared", [False, True])
@torch.no_grad()
def test_beits_own_file_gives_timms_logits(shared, tmp_path):
    theirs = made("beit_base_patch16_224", use_rel_pos_bias=not shared, use_shared_rel_pos_bias=shared)
    index = torch.zeros(17, 17, dtype=torch.long)  # computed from the grid, whatever the file says
    places = ["rel_pos_bias"] if shared else [f"blocks.{n}.attn" for n in range(3)]
    tensors = theirs.state_dict() | {f"{place}.relative_position_index": index for place in places}
    check_converter(read_beit, tensors, theirs)
    torch.save({"model": tensors}, tmp_path / "beit_base_patch16_224_pt22k_ft22kto1k.pth")
    assume = {"architecture": "beit_base_patch16_224", "patch_size": 8, "width": 48, "depth": 3, "mlp_width": 192}
    assume |= {"heads": 4} | ({"relative_position": "shared-table"} if shared else {})
    ours = load(tmp_path / "beit_base_patch16_224_pt22k_ft22kto1k.pth", assume=assume)
    x = torch.randn(2, 3, 32, 32)
    assert_same(ours(x), theirs(x))
