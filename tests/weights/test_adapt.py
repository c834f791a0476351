"""What other libraries hold: one table, which every new field of a ViT enters by itself."""

from dataclasses import fields

import pytest

from vitreous.models.vit_config import ViTConfig
from vitreous.weights.adapt import PAPER_VIT, SIZES, WRITABLE, check_limits, library_models
from vitreous.weights.formats.huggingface_config import read_config


def test_every_field_is_the_papers_unless_it_is_listed():
    assert sorted([*PAPER_VIT, *SIZES, *WRITABLE]) == sorted(each.name for each in fields(ViTConfig))


@pytest.mark.parametrize("kind", ["vit", "deit", "dinov2", "ijepa"])
def test_a_config_of_transformers_states_every_field_of_the_table(kind):
    assert set(PAPER_VIT) <= set(read_config({"model_type": kind}))


def test_a_library_has_the_papers_vit_but_for_what_it_says():
    known, like = library_models(pool=("mean",))({}, {})
    assert (known["pool"], known["class_token"], known["norm_eps"], like) == (("mean",), (True,), (1e-6,), "")


def test_a_model_beyond_the_paper_is_refused_by_the_fields_that_differ():
    check_limits(ViTConfig(), "garden", PAPER_VIT)
    with pytest.raises(ValueError, match="garden cannot hold .* does not support registers=4, qk_norm=True"):
        check_limits(ViTConfig(registers=4, qk_norm=True, prefix_positions=False), "garden", PAPER_VIT)
