import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import noise
from vitreous.models.token_layout import TokenLayout, to_pixels
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig

layouts = st.builds(
    lambda grid, kind, registers: TokenLayout(grid, kind > 0, kind > 1, registers),
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.integers(0, 2),
    st.integers(0, 5),
)


@given(layouts)
def test_index_and_patch_are_inverse(layout):
    for index in range(layout.tokens):
        place = layout.patch(index)
        assert (place is None) == (index < layout.prefix)
        if place is not None:
            assert layout.index(*place) == index


@given(layouts)
def test_the_grid_holds_each_patch_at_its_place(layout):
    values = torch.arange(layout.tokens)
    grid = layout.to_grid(values)
    assert grid.shape == layout.grid
    for row in range(layout.grid[0]):
        for column in range(layout.grid[1]):
            assert grid[row, column] == layout.index(row, column)
    assert torch.equal(layout.to_grid(values[layout.prefix :]), grid)


@given(layouts)
def test_every_token_has_a_name_of_its_own(layout):
    names = [layout.name(index) for index in range(layout.tokens)]
    assert len(set(names)) == layout.tokens


def test_names_in_order():
    layout = TokenLayout((1, 2), True, True, 1)
    assert [layout.name(i) for i in range(5)] == ["class", "distillation", "register 0", "patch (0, 0)", "patch (0, 1)"]


def test_what_lies_outside_is_refused():
    layout = TokenLayout((2, 3))
    with pytest.raises(ValueError, match="outside the 2×3 grid"):
        layout.index(2, 0)
    with pytest.raises(ValueError, match="tokens 0 to 6"):
        layout.patch(7)
    with pytest.raises(ValueError, match="expected 7 tokens or 6 patches, got 5"):
        layout.to_grid(torch.zeros(5))


CUTS = {
    "whole patches": {"image_size": (12, 24), "patch_size": (4, 6)},
    "pixels left over": {"image_size": (15, 29), "patch_size": (4, 6)},
    "pixels left over by a stem": {"image_size": (38, 60), "patch_size": 16, "stem": "mobileclip"},
}


@pytest.mark.parametrize("cut", CUTS)
@torch.no_grad()
def test_a_patch_reads_the_pixels_of_its_box_and_no_others(cut):
    model = noise(ViT(ViTConfig(**CUTS[cut], partial_patches=True, width=16, depth=1, heads=2)))
    layout, x = model.layout, torch.randn(1, 3, *model.config.size)
    before, left_over = model.patch_embed(x), torch.ones_like(x, dtype=torch.bool)
    for patch in range(layout.patches):
        left, top, right, bottom = layout.box(patch)
        kept = torch.ones(1, *layout.grid, dtype=torch.bool)
        kept.view(-1)[patch] = False
        inside = torch.zeros_like(left_over)
        inside[..., top:bottom, left:right] = True
        assert torch.equal(~to_pixels(kept, x.shape[-2:], model), inside[:, :1])
        changed = (model.patch_embed(x + inside) != before).any(dim=-1)[0]
        assert changed.nonzero().flatten().tolist() == [patch]
        for row, column in ((top, left), (bottom - 1, right - 1)):  # every pixel up to the corners
            corner = x.clone()
            corner[..., row, column] += 1
            assert (model.patch_embed(corner) != before).any(dim=-1)[0, patch]
        left_over &= ~inside
    assert torch.equal(model.patch_embed(x + left_over), before)
    height, width = layout.covered
    assert not left_over[..., :height, :width].any()


def test_a_resnets_stem_which_rounds_up_takes_whole_patches_alone():
    with pytest.raises(ValueError, match="not a whole number of 16×16 patches"):
        ViTConfig(image_size=(38, 45), patch_size=16, stem="r50-s16", partial_patches=True)


def test_cells_of_another_grid_divide_what_patches_read_and_those_of_another_network_the_whole_image():
    config = ViTConfig(image_size=(15, 29), patch_size=(4, 6), partial_patches=True, width=16, depth=1, heads=2)
    kept = torch.tensor([[[False, True]], [[True, False]]])
    shown = to_pixels(kept, (15, 29), ViT(config))
    assert shown.shape == (2, 1, 15, 29)
    assert (~shown[0, 0]).nonzero().aminmax(dim=0).max.tolist() == [11, 11]
    assert (~shown[1, 0]).nonzero().aminmax(dim=0).min.tolist() == [0, 12]
    assert shown[..., 12:, :].all()
    assert shown[..., 24:].all()
    shown = to_pixels(kept, (15, 30), torch.nn.Flatten())
    assert (~shown[0, 0]).nonzero().aminmax(dim=0).max.tolist() == [14, 14]


def test_a_box_of_a_patch_that_does_not_exist_is_refused():
    layout = TokenLayout((2, 3), patch_size=(4, 6))
    assert layout.box(5) == (12, 4, 18, 8)
    with pytest.raises(ValueError, match="there is no patch 6: this model has 0 to 5"):
        layout.box(6)
    with pytest.raises(ValueError, match="there is no patch -1"):
        layout.box(-1)
