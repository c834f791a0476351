"""Relative position bias by its definition, and against timm's modules."""

import copy

import pytest
import torch
from timm.layers import RelPosBias, RelPosMlp
from torch import nn

from vitreous.models.qv_bias import QVLinear
from vitreous.models.relative_position import FixedBias, RelativeMLP, RelativeTable
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

SMALL = {"image_size": (8, 12), "patch_size": 4, "width": 16, "depth": 2, "heads": 2, "classes": 3, "position": "none"}


@pytest.mark.parametrize("class_token", [True, False])
def test_a_table_gives_each_pair_of_patches_the_number_of_its_offset(class_token):
    rows, columns = grid = (2, 3)
    table = RelativeTable(grid, 4, class_token)
    nn.init.normal_(table.relative_position_bias_table)
    numbers, bias = table.relative_position_bias_table, table()
    for i in range(rows * columns):
        for j in range(rows * columns):
            down, right = i // columns - j // columns, i % columns - j % columns
            offset = (down + rows - 1) * (2 * columns - 1) + right + columns - 1
            assert torch.equal(bias[:, i + class_token, j + class_token], numbers[offset])
    if class_token:
        assert torch.equal(bias[:, 0, 1:], numbers[-3, :, None].expand(-1, rows * columns))
        assert torch.equal(bias[:, 1:, 0], numbers[-2, :, None].expand(-1, rows * columns))
        assert torch.equal(bias[:, 0, 0], numbers[-1])


@pytest.mark.parametrize("class_token", [True, False])
def test_both_kinds_are_timms(class_token):
    table, theirs = RelativeTable((3, 4), 5, class_token), RelPosBias((3, 4), 5, prefix_tokens=int(class_token))
    table.load_state_dict(theirs.state_dict())
    assert torch.equal(table()[None], theirs.get_bias())
    network, theirs = RelativeMLP((3, 4), 5, class_token, 7), RelPosMlp((3, 4), 5, 7, int(class_token)).eval()
    network.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(network()[None], theirs.get_bias())


def test_the_network_computes_the_same_number_for_the_same_offset_on_any_grid():
    small, large = RelativeMLP((2, 2), 1, False, 8), RelativeMLP((5, 3), 1, False, 8)
    large.load_state_dict(small.state_dict())
    torch.testing.assert_close(small()[0, 0, 3], large()[0, 0, 4])  # one down, one to the right


@pytest.mark.parametrize("kind", ["table", "shared-table", "mlp", "shared-mlp"])
@torch.no_grad()
def test_a_bias_that_forbids_all_but_a_token_itself_makes_tokens_independent(kind):
    model = ViT(ViTConfig(**SMALL, relative_position=kind, relative_width=4, class_token=False, pool="mean"))
    model.blocks[0].attn.proj.weight.normal_()
    rel_pos = model.shared_rel_pos or model.blocks[0].attn.rel_pos
    if kind.endswith("table"):
        rel_pos.relative_position_bias_table.fill_(-1e4)[7] = 0  # of 3 × 5 offsets the middle
    else:
        rel_pos.mlp["fc1"].weight.copy_(torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]]))
        rel_pos.mlp["fc2"].weight.fill_(-1e5)
    x = torch.randn(1, 6, 16)
    alone = torch.cat([model.blocks[0](x[:, [i]].expand(-1, 6, -1))[:, [i]] for i in range(6)], dim=1)
    torch.testing.assert_close(model.blocks[0](x), alone)


def test_a_copy_shares_its_own_bias():
    model = copy.deepcopy(ViT(ViTConfig(**SMALL, relative_position="shared-table")))
    assert model.blocks[1].attn.shared_rel_pos[0] is model.shared_rel_pos
    assert [key for key in model.state_dict() if "rel_pos" in key] == ["shared_rel_pos.relative_position_bias_table"]


def test_a_fixed_bias_is_given_back():
    assert torch.equal(FixedBias(bias := torch.randn(2, 3, 3))(), bias)


def test_keys_have_no_bias():
    layer, x = QVLinear(3), torch.randn(2, 3)
    nn.init.normal_(layer.q_bias)
    nn.init.normal_(layer.v_bias)
    expected = torch.cat([layer.q_bias, torch.zeros(3), layer.v_bias]).expand(2, -1)
    torch.testing.assert_close(layer(x) - x @ layer.weight.T, expected)
    layer(x).sum().backward()
    assert layer.q_bias.grad is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relative_position": "mlp"}, "relative_width"),
        ({"relative_position": "table", "registers": 1}, "registers=0"),
        ({"qv_bias": True}, "set one of them"),
        ({"post_norm": True, "layer_scale": 0.1}, "layer_scale=0.0"),
    ],
)
def test_fields_that_contradict_each_other_are_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        ViTConfig(**SMALL | changes)
