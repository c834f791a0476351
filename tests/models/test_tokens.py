import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitreous.models.tokens import TokenLayout

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
