"""Every name of the glossary is an internal that capture records, in the order of the forward pass."""

import pytest
from families import family, images

from vitreous.inside.capture import capture
from vitreous.inside.glossary import BLOCK, POOL, WHOLE, full_name

DIMENSIONS = {"b": 2, "t": 13, "n": 12, "d": 24, "h": 4, "k": 6, "q": 13, "m": 96, "classes": 5}


def test_no_name_has_two_meanings():
    assert len({*WHOLE, *BLOCK, *POOL}) == len(WHOLE) + len(BLOCK) + len(POOL)


@pytest.mark.parametrize("name", [*WHOLE, *BLOCK])
def test_every_name_is_recorded_with_its_shape(name):
    model = family("class token")
    with capture(model, name, layers=[1]) as internals:
        model(images(model))
    full, (shape, _) = (name, WHOLE[name]) if name in WHOLE else (full_name(name, 1), BLOCK[name])
    assert list(internals) == [full]
    assert internals[full].shape == tuple(DIMENSIONS[letter] for letter in shape.strip("[]").split())


@pytest.mark.parametrize("name", POOL)
def test_every_name_of_attention_pooling_is_recorded_with_its_shape(name):
    model = family("attention pool of all tokens", pool_heads=4)
    with capture(model, name) as internals:
        model(images(model))
    assert list(internals) == [name]
    dimensions = DIMENSIONS | {"1": 1}
    assert internals[name].shape == tuple(dimensions[letter] for letter in POOL[name][0].strip("[]").split())
    with pytest.raises(ValueError, match="no internal is called"), capture(family("class token"), name):
        pass
