"""`vitreous.explain` as a notebook calls it."""

import numpy as np
import pytest
import torch

import vitreous
from vitreous.data.sample_photos import samples
from vitreous.predict.class_matching import find_class
from vitreous.weights.load import load

PHOTO = samples()["chelsea"]


@pytest.fixture(scope="module")
def model():
    return load("packaged:cifar10")


@pytest.mark.slow
def test_an_image_may_be_a_path_bytes_an_array_or_a_tensor(model, tmp_path):
    PHOTO.save(tmp_path / "photo.png")
    pixels = np.asarray(PHOTO)
    sources = [
        PHOTO,
        tmp_path / "photo.png",
        (tmp_path / "photo.png").read_bytes(),
        pixels,
        torch.from_numpy(pixels.copy()).permute(2, 0, 1),
    ]
    found = [vitreous.explain(source, model, "relevance").map() for source in sources]
    for each in found[1:]:
        np.testing.assert_array_equal(each, found[0])


def test_several_images_give_several_explanations(model, tmp_path):
    for name in ("a.png", "b.png"):
        PHOTO.save(tmp_path / name)
    found = vitreous.explain(tmp_path, model, "predictions")
    assert [each.inspection.name.rpartition("/")[2] for each in found] == ["a.png", "b.png"]


def test_the_target_and_the_choice_are_heeded(model):
    found = vitreous.explain(PHOTO, model, "attention-rows", target="dog", block=2, query=5)
    assert found.inspection.target == 5
    assert found.results("attention-rows")[""].filled_title == "Attention of the patch (0, 4), block 2"


def test_a_model_alone_has_views_too(model):
    found = vitreous.explain(model=model)
    assert list(found.compute()) == ["positions", "filters", "architecture", "shapes", "card"]


def test_a_class_that_does_not_exist_is_an_error_with_the_nearest_names(model):
    with pytest.raises(ValueError, match="no class 'dogs': did you mean dog"):
        find_class("dogs", model)
    with pytest.raises(ValueError, match="no class 'unicorn': its classes are airplane"):
        find_class("unicorn", model)


@pytest.mark.slow
def test_it_saves_a_page_and_figures(model, tmp_path):
    found = vitreous.explain(PHOTO, model, "rollout,attention-maps")
    assert found.save(tmp_path / "report.html").read_text().startswith("<!doctype html>")
    written = found.save_figures(tmp_path / "figures")
    assert [path.name for path in written] == ["attention-maps.png", "attention-maps-heads.png", "rollout.png"]


def test_a_page_is_never_written_over_a_file_of_another_kind(model, tmp_path):
    PHOTO.save(tmp_path / "cat.png")
    before = (tmp_path / "cat.png").read_bytes()
    found = vitreous.explain(PHOTO, model, "rollout")
    with pytest.raises(ValueError, match=r"the page is an .html file, got .*cat.png: name .*cat.html \(.*save_figures"):
        found.save(tmp_path / "cat.png")
    assert (tmp_path / "cat.png").read_bytes() == before
    assert found.save(tmp_path / "PAGE.HTM").read_text().startswith("<!doctype html>")


def test_a_scale_or_precision_that_there_is_not_lists_those_there_are(model, tmp_path):
    with pytest.raises(ValueError, match="scale must be one of raw, log, layer-norm, got 'logg'"):
        vitreous.explain(PHOTO, model, "attention-matrix", scale="logg")
    with pytest.raises(ValueError, match="live must be True, False, fp16 or int8, got 'int4'"):
        vitreous.explain(PHOTO, model, "rollout").save(tmp_path / "l.html", live="int4")


def test_a_fit_shows_another_part_and_leaves_the_model_as_it_was(model):
    before = model.card.preprocess
    cropped, padded = (vitreous.explain(PHOTO, model, "predictions", fit=fit).inspection for fit in ("crop", "pad"))
    assert model.card.preprocess == before
    assert np.asarray(padded.view)[0].max() == 0  # a black edge: the photograph is wide
    assert np.asarray(cropped.view)[0].max() > 0
    assert next(padded.model.parameters()) is next(model.parameters())
