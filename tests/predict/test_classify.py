import zipfile

import numpy as np
import pytest
import torch
from loopback_hub import LoopbackFiles
from PIL import Image
from task_sets import task_model

from conftest import VIT_TI
from vitreous.data.images import ImageError
from vitreous.predict.classify import Answer, Answers, Prediction, classify, classify_each, top_classes
from vitreous.predict.embed import embed
from vitreous.predict.pipeline import choose_compute
from vitreous.weights.load import load


@torch.no_grad()
def test_probabilities_and_logits_are_the_models_own(small_folder, images):
    model = load(small_folder)
    answers = classify(images, model, top=3)
    assert [answer.image for answer in answers] == [str(path) for path in images]
    for path, answer in zip(images, answers, strict=True):
        logits = model(model.card.preprocess(Image.open(path))[None])[0]
        best = logits.argsort(descending=True)[:3]
        assert [p.index for p in answer.predictions] == best.tolist()
        for p in answer.predictions:
            assert p.logit == pytest.approx(logits[p.index].item(), abs=1e-4)
            assert p.probability == pytest.approx(logits.softmax(-1)[p.index].item(), abs=1e-5)
            assert p.class_name == f"class {p.index}"


def test_batches_of_any_size_give_the_same_answers(small_folder, images):
    model = load(small_folder)
    one, many = (classify(images, model, batch_size=size) for size in (1, 4))
    assert [a.best.index for a in one] == [a.best.index for a in many]
    assert [a.best.logit for a in one] == pytest.approx([a.best.logit for a in many], abs=1e-4)


def test_one_image_may_be_a_path_or_an_image(small_folder, images):
    by_path = classify(str(images[0]), str(small_folder))
    by_image = classify(Image.open(images[0]), str(small_folder))
    assert by_path.predictions == by_image.predictions


def test_bad_images_are_answered_by_their_error_in_order(small_folder, images, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    mixed = [images[0], tmp_path / "bad.png", images[1], tmp_path / "missing.png"]
    answers = list(classify_each(mixed, str(small_folder), batch_size=2))
    assert [isinstance(answer, ImageError) for answer in answers] == [False, True, False, True]
    assert answers[2] == classify(images[1], str(small_folder))
    with pytest.raises(ImageError, match=r"bad\.png"):
        classify(mixed, str(small_folder))


@pytest.mark.parametrize("choice", [{"top": 0}, {"top": 2.5}, {"batch_size": 1.5}, {"batch_size": 0}])
def test_a_number_that_is_none_is_refused_in_one_line(choice, small_folder, images):
    ((name, number),) = choice.items()
    with pytest.raises(ValueError, match=f"^{name} must be at least 1, and a whole number, got {number}$"):
        classify(images, small_folder, **choice)


def test_a_headless_model_points_to_embed(small_folder, images):
    with pytest.raises(ValueError, match="has no head.*vitreous embed"):
        classify(images, load(small_folder, classes=0))


def test_bf16_comes_close(small_folder, images):
    model = load(small_folder)
    exact = classify(images, model, top=7)
    rough = classify(images, model, top=7, precision="bf16")
    for a, b in zip(exact, rough, strict=True):
        largest = max(abs(p.logit) for p in a.predictions)
        logits = {p.index: p.logit for p in b.predictions}
        assert all(abs(logits[p.index] - p.logit) < 0.05 * largest for p in a.predictions)
        assert any(logits[p.index] != p.logit for p in a.predictions)


def test_equal_logits_are_ranked_by_class_number():
    assert [p.index for p in top_classes(torch.tensor([1.0, 3.0, 3.0, 0.0]), str, 3)] == [1, 2, 0]


def test_the_callers_model_stays_as_it_was(small_folder, images):
    model = load(small_folder).train()
    before = next(model.parameters()).dtype
    classify(images, model, precision="bf16")
    embed(images, model)
    assert model.training
    assert next(model.parameters()).dtype == before


def test_a_model_that_answers_nan_says_so(small_folder, images):
    model = load(small_folder)
    with torch.no_grad():
        model.norm.bias[0] = float("nan")
    with pytest.raises(ValueError, match="answers NaN"):
        classify(images, model)


def test_an_image_too_thin_to_crop_is_named(small_folder, tmp_path):
    from dataclasses import replace

    model = load(small_folder)
    model.card.preprocess = replace(model.card.preprocess, resize=32)
    Image.new("RGB", (1, 60_000)).resize((1, 60_000)).save(tmp_path / "thread.png")
    model.card.preprocess = replace(model.card.preprocess, resize=2000, size=(32, 32))
    with pytest.raises(ImageError, match=r"thread\.png: too long and thin"):
        classify(tmp_path / "thread.png", model)


def test_one_image_gives_an_answer_and_several_a_list(small_folder, images):
    model = load(small_folder)
    pixels = np.asarray(Image.open(images[0]))
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    expected = classify(images[0], model)
    assert isinstance(expected, Answer)
    for source in (images[0].read_bytes(), images[0].open("rb"), Image.open(images[0]), pixels, pixels / 255, tensor):
        assert classify(source, model).predictions == expected.predictions
    several = [classify(given, model) for given in (images, images[0].parent, str(images[0].parent / "?.png"))]
    for answers in several:
        assert isinstance(answers, Answers)
        assert [answer.image for answer in answers] == [str(path) for path in images]
    assert classify([pixels], model)[0].predictions == expected.predictions
    assert classify([], model) == []


def test_answers_show_themselves_as_text_and_as_a_table_without_raw_markup(small_folder, images):
    answers = classify(images[:2], str(small_folder), top=2)
    assert repr(answers[0]).splitlines()[0] == str(images[0])
    assert len(repr(answers[0]).splitlines()) == 3
    assert [line.split()[0] for line in repr(answers).splitlines()] == [str(path) for path in images[:2]]
    table = answers._repr_html_()
    assert table.count("data:image/png;base64,") == table.count("<tr><td>") == 2
    assert answers[0]._repr_html_().count("<tr><td>") == 1
    strange = Answer("<script>", (Prediction(0, "<b>&", 0.5, 1.0),), b"no image")
    assert "<tr><td><td>&lt;script&gt;<td>&lt;b&gt;&amp; 50.0%" in strange._repr_html_()
    assert repr(Answers()) == "no images"
    assert repr(Answers([strange] * 130)).endswith("and 30 more")


@pytest.mark.skipif(not VIT_TI.exists(), reason="the real ViT-Ti is not on this machine")
def test_a_real_vit_calls_santorini_a_dome(shared):
    answer = classify(shared / "data/santorini.png", str(VIT_TI))
    found = {p.class_name: p.probability for p in answer.predictions}
    assert found["dome"] == pytest.approx(0.67, abs=0.01)
    assert found["church"] == pytest.approx(0.20, abs=0.01)


def test_urls_and_archives_answer_as_files_do(small_folder, images, tmp_path):
    model = load(small_folder)
    expected = classify(images, model, device="cpu")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in images:
            archive.write(path, path.name)
    inside = classify(tmp_path / "a.zip", model, device="cpu")
    assert [answer.predictions for answer in inside] == [answer.predictions for answer in expected]
    assert [answer.image for answer in inside] == [f"{tmp_path / 'a.zip'}/{path.name}" for path in images]
    with LoopbackFiles({"/0.png": images[0].read_bytes()}) as files:
        answer = classify(f"{files.url}/0.png", model, device="cpu")
        assert answer.predictions == classify(images[0], model, device="cpu").predictions
        assert f'src="{files.url}/0.png"' in answer._repr_html_()
        with pytest.raises(ImageError, match="there is no file at this address"):
            classify([f"{files.url}/none.png"], model, device="cpu")
        assert embed(f"{files.url}/0.png", model, device="cpu").equal(embed(images[0], model, device="cpu"))


def test_a_fit_is_the_preprocessing_of_that_call_alone(small_folder, images):
    model = load(small_folder)
    before = model.card.preprocess
    found = {fit: classify(images[0], model, fit=fit, device="cpu").best.logit for fit in (None, "crop", "pad")}
    assert len(set(found.values())) == 3
    assert model.card.preprocess == before
    model.card.preprocess = before.with_fit("pad")
    assert classify(images[0], model, device="cpu").best.logit == found["pad"]
    vectors = [embed(images[0], model, fit=fit, device="cpu") for fit in ("pad", "crop")]
    assert not vectors[0].equal(vectors[1])
    with pytest.raises(ValueError, match="fit has to be one of crop, squash, pad"):
        classify(images[0], model, fit="stretch")


# --- other tasks than a class for each image --------------------------------------------------------------------------


def outputs_of(model, path):
    with torch.no_grad():
        return model(model.card.preprocess(Image.open(path))[None])[0]


def test_labels_are_present_from_their_thresholds_on(images):
    model = task_model("multilabel", ["cat", "dog", "owl", "outdoor"])
    probabilities = [outputs_of(model, path).sigmoid() for path in images]
    for thresholds in (None, (0.9, 0.1, 0.5, 0.3)):
        model.card.thresholds = thresholds
        answers = classify(images, model, top=2, device="cpu")
        for answer, expected in zip(answers, probabilities, strict=True):
            order = expected.argsort(descending=True).tolist()
            limits = thresholds or (0.5,) * 4
            names = model.card.class_names
            assert answer.labels == tuple(names[i] for i in order if expected[i] >= limits[i])
            assert [p.index for p in answer.predictions] == order[:2]
            for p in answer.predictions:
                assert p.probability == pytest.approx(expected[p.index].item(), abs=1e-5)
                assert p.present is bool(expected[p.index] >= limits[p.index])
    assert {p.present for answer in answers for p in answer.predictions} == {True, False}


def test_labels_show_themselves_with_those_that_are_present():
    found = (Prediction(1, "dog", 0.9, 2.2, True), Prediction(0, "cat", 0.2, -1.4, False))
    answer = Answer("a.jpg", found, labels=("dog", "owl"))
    assert repr(answer).splitlines() == ["a.jpg", "  dog   90.0%  present", "  cat   20.0%"]
    assert repr(Answers([answer])) == "a.jpg  dog, owl"
    assert repr(Answers([Answer("b.jpg", found[1:], labels=())])) == "b.jpg  no label"
    assert "<th>labels<tr><td><td>a.jpg<td>dog 90.0%  present<br>cat 20.0%" in answer._repr_html_()
    assert answer.to_dict()["labels"] == ["dog", "owl"]
    assert [p["present"] for p in answer.to_dict()["predictions"]] == [True, False]


def test_a_class_is_neither_present_nor_absent(small_folder, images):
    answer = classify(images[0], str(small_folder), device="cpu")
    assert {p.present for p in answer.predictions} == {None}
    assert list(answer.to_dict()["predictions"][0]) == ["index", "class_name", "probability", "logit"]


def test_numbers_are_the_models_own_in_their_units(images):
    model = task_model("regress", ["angle", "age"])
    for path, answer in zip(images, classify(images, model, device="cpu"), strict=True):
        expected = outputs_of(model, path).tolist()
        assert list(answer.numbers) == ["angle", "age"]
        assert list(answer.numbers.values()) == pytest.approx(expected, abs=1e-4)
        assert answer.predictions == ()
    with pytest.raises(ValueError, match="names no class of the whole image: read its numbers"):
        _ = answer.best


def test_numbers_show_themselves_without_percent():
    answer = Answer("a.jpg", numbers={"angle": -23.4321, "price": 184223.4})
    assert repr(answer).splitlines() == ["a.jpg", "  angle  -23.43", "  price  184223"]
    assert repr(Answers([answer])) == "a.jpg  angle -23.43, price 184223"
    assert "%" not in answer._repr_html_()
    assert answer.to_dict() == {"image": "a.jpg", "numbers": {"angle": -23.4321, "price": 184223.4}}


def test_numbers_in_units_of_their_deviation_are_not_answered(images):
    model = task_model("regress")
    model.card.standard = ((0.0, 1.0), (5.0, 2.0))
    with pytest.raises(ValueError, match="still in units of their deviation"):
        classify(images[0], model, device="cpu")


def test_a_mask_has_the_images_own_size_and_the_models_classes(images):
    model = task_model("segment", ["sky", "sea", "sand"])
    for path, answer in zip(images, classify(images, model, device="cpu"), strict=True):
        width, height = Image.open(path).size
        resized = torch.nn.functional.interpolate(outputs_of(model, path)[None], (height, width), mode="bilinear")
        assert answer.mask.dtype == np.uint8
        assert (answer.mask == resized[0].argmax(dim=0).numpy()).mean() > 0.99  # ties aside
        for share in answer.shares:
            assert share.share == pytest.approx((answer.mask == share.index).mean())
            assert share.class_name == ("sky", "sea", "sand")[share.index]
    assert [s.share for s in answer.shares] == sorted((s.share for s in answer.shares), reverse=True)
    assert sum(s.share for s in answer.shares) == pytest.approx(1.0)


def test_beyond_a_crop_a_mask_says_nothing(images):
    model = task_model("segment")
    answer = classify(images[0], model, fit="crop", device="cpu")  # 30×20 pixels
    assert (answer.mask[:, :5] == 255).all()
    assert (answer.mask[:, 5:25] < 2).all()
    assert sum(s.share for s in answer.shares) == pytest.approx(2 / 3)


def test_a_photograph_lying_on_its_side_gets_an_upright_mask(tmp_path):
    image = Image.new("RGB", (30, 20))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif)
    assert classify(tmp_path / "turned.jpg", task_model("segment"), device="cpu").mask.shape == (30, 20)


def test_masks_show_themselves_with_their_colours(images):
    model = task_model("segment")
    answer = classify(images[0], model, device="cpu")
    lines = repr(answer).splitlines()
    assert lines[0] == str(images[0])
    assert lines[1].split() == [answer.shares[0].class_name, f"{answer.shares[0].share:.1%}"]
    table = answer._repr_html_()
    assert table.count("data:image/png;base64,") == 1
    assert '<span style="color:#' in table
    assert list(answer.to_dict()) == ["image", "shares"]
    plain = Answer(answer.image, source=answer.source)
    assert plain._repr_html_() != table


@pytest.mark.parametrize("task", ["multilabel", "regress", "segment"])
def test_the_fast_ways_answer_as_the_plain_model_does(task, images):
    model = task_model(task)
    plain = classify(images[:2], model, device="cpu")
    compute = choose_compute(model, images=64, device="cpu")
    for a, b in zip(plain, classify_each(images[:2], model, compute=compute, device="cpu"), strict=True):
        if task == "segment":
            assert (a.mask == b.mask).mean() > 0.99
        elif task == "regress":
            assert list(a.numbers.values()) == pytest.approx(list(b.numbers.values()), abs=1e-4)
        else:
            assert a.labels == b.labels


@pytest.mark.parametrize("task", ["multilabel", "regress", "segment"])
def test_models_of_every_task_embed_images(task, images):
    assert embed(images, task_model(task), device="cpu").shape == (5, 48)
