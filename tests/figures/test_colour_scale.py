import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vitreous.figures.colour_scale import own_scales, round_ticks, scale_of, short_numbers
from vitreous.figures.matrix import fit_both, fit_columns, fit_rows
from vitreous.figures.style import elide, text_width, wrap

WORDS = st.text("abc wxyz,MW.é", max_size=60)


@given(WORDS, st.floats(0.3, 3))
def test_elided_text_fits_and_begins_as_the_whole_does(text, width):
    shown = elide(text, width)
    assert text_width(shown) <= width
    whole = " ".join(text.split())
    assert shown == whole or (shown.endswith("…") and whole.startswith(shown[:-1]))


@given(WORDS, st.floats(0.3, 3))
def test_text_that_fits_is_left_alone(text, room):
    whole = " ".join(text.split())
    assert elide(text, text_width(whole) + room) == whole


@given(WORDS, st.integers(1, 3))
def test_wrapped_lines_fit_and_lose_nothing_without_an_ellipsis(text, lines):
    shown = wrap(text, 1.5, lines=lines)
    assert len(shown) <= lines
    assert all(text_width(line) <= 1.5 for line in shown)
    if not any(line.endswith("…") for line in shown):
        assert " ".join(shown).split() == text.split()


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0, 50, 100], ["0", "50", "100"]),
        ([0, 0.25, 0.5], ["0", "0.25", "0.50"]),
        ([-1.0, 0.0, 1.0], ["−1", "0", "1"]),
        ([0, 2.5e-7, 5e-7], ["0", "2.5×10⁻⁷", "5.0×10⁻⁷"]),
        ([0, 1e7, 2e7], ["0", "1×10⁷", "2×10⁷"]),
        ([], []),
        ([0.0], ["0"]),
    ],
)
def test_numbers_are_written_short(values, texts):
    assert short_numbers(values) == texts


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
@example(0.0003, 1e-06)
def test_ticks_lie_within_and_all_differ(low, span):
    ticks = round_ticks(low, low + span)
    slack = 1e-6 * span + 1e-9 * abs(low)
    assert all(low - slack <= place <= low + span + slack for place in ticks)
    if span > 1e-3 * abs(low):
        assert len(set(ticks.values())) == len(ticks) >= 2


def test_a_scale_begins_at_zero_unless_asked_otherwise():
    assert scale_of(np.array([0.5, 1.0])).low == 0
    assert scale_of(np.array([0.5, 1.0]), from_zero=False).low == 0.5
    assert scale_of(np.array([0.001, 1.0]), from_zero=False).low == 0
    assert scale_of(np.array([-0.5, 1.0])).low == -0.5


def test_a_clipped_scale_ends_where_the_pages_does():
    values = np.array([100.0, *np.linspace(0, 1, 99)])
    assert scale_of(values, clipped=True).high == np.sort(values)[96]
    assert scale_of(np.array([0.0] * 99 + [1.0]), clipped=True).high == 1  # else all would be dark


@pytest.mark.parametrize("values", [[], [np.nan], [0.0, 0.0], [3.0], [-3.0], [1.0, 1.0 + 1e-12]])
def test_every_scale_has_a_width(values):
    for diverging in (False, True):
        scale = scale_of(np.array(values), diverging=diverging)
        assert scale.low < scale.high
        assert all(scale.low <= value <= scale.high for value in values if not np.isnan(value))


def test_a_clipped_signed_scale_is_even_and_ends_where_few_values_are_larger():
    values = np.append(np.linspace(-0.1, 0.1, 200), [5.0, -4.0])
    scale = scale_of(values, diverging=True, clipped=True)
    assert scale.high == -scale.low
    assert 0.09 < scale.high < 0.11


def test_a_bar_that_does_not_begin_at_zero_says_where():
    assert scale_of(np.array([0.0026, 0.0071]), from_zero=False).ticks[0.0026] == "0.0026"
    assert min(scale_of(np.array([0.0, 0.0071])).ticks) == 0.0


def test_a_bar_for_many_scales_has_words_for_numbers():
    assert list(own_scales().ticks.values()) == ["0", "high"]


def test_numbers_are_thinned_and_words_turned():
    numbers = [str(i) for i in range(100)]
    assert fit_rows(numbers, 0.05).every == 5
    thinned = fit_columns(numbers, 0.05)
    assert not thinned.turned
    assert thinned.every == 5
    turned = fit_columns(["embedding", "block 0"], 0.3)
    assert turned.turned
    assert turned.every == 1
    assert turned.room > fit_columns(["embedding", "block 0"], 3.0).room


def test_a_square_has_the_same_steps_on_both_sides():
    rows, columns = fit_both(*[[str(i) for i in range(200)]] * 2, (0.1, 0.1))
    assert rows.every == columns.every > 1
