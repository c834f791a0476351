import pytest
import torch
from families import FAMILIES, family

from vitreous.inside.position_similarity import position_similarity
from vitreous.models.vit import ViT


@pytest.mark.parametrize("name", [name for name, fields in FAMILIES.items() if fields.get("position") != "none"])
def test_each_tile_holds_the_cosines_of_one_patch_with_all(name):
    model = family(name)
    tiles, layout = position_similarity(model), model.layout
    assert tiles.shape == (*layout.grid, *layout.grid)
    assert not tiles.requires_grad
    table = model.pos_embed[0, -layout.patches :]
    columns = layout.grid[1]
    expected = torch.cosine_similarity(table[columns + 2], table[2 * columns + 1], dim=0)
    torch.testing.assert_close(tiles[1, 2, 2, 1], expected)
    torch.testing.assert_close(tiles[2, 1, 2, 1], torch.tensor(1.0))
    torch.testing.assert_close(tiles, tiles.permute(2, 3, 0, 1))


def test_sine_positions_are_alike_by_their_distance_alone():
    model = ViT(family("sine").config)  # noise would overwrite the sines
    tiles = position_similarity(model)
    torch.testing.assert_close(tiles[0, 0, 1, 2], tiles[1, 1, 2, 3])
    assert tiles[0, 0, 0, 0] > tiles[0, 0, 0, 1] > tiles[0, 0, 0, 2]


def test_a_model_without_positions_is_refused():
    with pytest.raises(ValueError, match="position='none'"):
        position_similarity(family("class token", position="none"))
