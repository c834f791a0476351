"""A comparison's page: names cannot break it, and only a model that wins every verdict is the best."""

from dataclasses import replace

from conftest import noise
from vitreous.data.preprocess import HALF, Preprocess
from vitreous.data.sample_photos import samples
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.pages.comparison import CLASSES, ComparedDataset, class_gaps, write_comparison_page
from vitreous.weights.card import Card


def test_a_study_of_which_nothing_could_be_run_has_a_page_and_names_are_escaped(tmp_path):
    missing = {"data": "<b>pets", "missing": "no <network>", "quoted": {"vit": 98.1, "resnet": 97}}
    datasets = [ComparedDataset(missing), ComparedDataset({**missing, "data": "birds"})]
    text = write_comparison_page(tmp_path, datasets, title="<i>two", command="compare 'a&b'").read_text()
    assert "Nothing could be run" in text
    assert "98.10 %, 97.00 %" in text
    for name in ("&lt;i&gt;two", "&lt;b&gt;pets", "no &lt;network&gt;", "a&amp;b"):
        assert name in text, name
    assert "<b>pets" not in text


def compared(*verdicts):
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    return ComparedDataset(
        {
            "rows": [{"model": name} for name in "abc"],
            "pairs": [{"one": x, "other": y, "verdict": v} for (x, y), v in zip(pairs, verdicts, strict=True)],
        }
    )


def test_the_best_model_wins_every_verdict_on_it():
    assert compared("b", "c", "b").best() == 1
    assert compared("b", "c", "").best() is None
    assert compared("", "", "").best() is None


def test_of_many_pairs_those_without_a_verdict_are_folded():
    lines = ["a is better", "a and b, no verdict", "a and c, no verdict", "b and c, no verdict"]
    many, none = compared("a", "", ""), compared("", "", "")
    assert replace(many, verdicts=lines).decided() == 1
    assert replace(none, verdicts=lines[1:]).decided() == 3  # few are all shown
    assert replace(none, verdicts=lines[1:] + lines[1:]).decided() == 0


def test_of_many_classes_those_that_differ_most_are_shown():
    count = 3 * CLASSES
    gaps = class_gaps([str(i) for i in range(count)], [i / count for i in range(count)], [0.5] * count)
    assert len(gaps) == CLASSES
    assert gaps[0][1] > 0 > gaps[-1][1]
    assert {name for name, _ in gaps} == {str(i) for i in range(count) if min(i, count - 1 - i) < CLASSES // 2}


def test_a_class_that_does_not_differ_takes_no_bar_from_one_that_does():
    names, worst = [str(i) for i in range(2 * CLASSES)], [0.5] * (2 * CLASSES)
    for sign in (1, -1):
        better = [0.5 + sign * (0.1 if i < CLASSES - 1 else 0) for i in range(2 * CLASSES)]
        better[-1] -= sign * 0.2
        gaps = class_gaps(names, better, worst)
        assert len(gaps) == CLASSES
        assert all(gap for _, gap in gaps)
    assert len(class_gaps(names, [0.6, *worst[1:]], worst)) == 1
    assert len(class_gaps(names, worst, worst)) == CLASSES


def test_maps_lie_over_the_pixels_that_patches_read(monkeypatch):
    config = ViTConfig(image_size=(19, 22), patch_size=4, partial_patches=True, width=24, depth=2, heads=3, classes=2)
    model, shapes = noise(ViT(config)), []
    model.card = Card("partial", Preprocess(size=(19, 22), resize=(19, 22), mean=HALF, std=HALF), ("cat", "dog"))
    monkeypatch.setattr("vitreous.pages.comparison.figure_image", lambda *_: "")
    monkeypatch.setattr(
        "vitreous.pages.comparison.draw_overlay",
        lambda image, heat=None: shapes.append((image.shape, None if heat is None else heat.shape)),
    )
    dataset = ComparedDataset({"classes": {"names": ["cat", "dog"]}}, image=lambda index: samples()["chelsea"])
    dataset._tile({"one": ("partial", model)}, {"image": 0, "label": 1, "one": (1, 0.9)})
    times = 256 // 22
    assert shapes == [((16 * times, 20 * times, 3), (4, 5)), ((16 * times, 20 * times, 3), None)]
