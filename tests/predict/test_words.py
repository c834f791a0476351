"""Words as classes: probabilities of the original libraries, templates, files of names, and hostile sentences."""

import json
import sys
from urllib.request import urlopen

import numpy as np
import open_clip
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from two_towers import write_open_clip, write_siglip

import vitreous
from vitreous.cli.main import main
from vitreous.predict.words import (
    ENSEMBLE,
    check_sentences,
    clean_name,
    folder_words,
    named_by_folders,
    read_words,
    text_features,
    with_folder_names,
    with_target,
    with_words,
)
from vitreous.weights.load import load
from vitreous.weights.load_text import load_text

CLASSES = ["a cat", "a dog", "the bell tower of a church"]


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 48, 3), dtype=np.uint8)).save(path)
    return path


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    return folder, write_open_clip(folder)


@pytest.fixture(scope="module")
def siglip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("siglip")
    torch.manual_seed(0)
    return folder, write_siglip(folder)


def run(monkeypatch, capsys, *words):
    """What a command prints, and its exit code."""
    monkeypatch.setattr(sys, "argv", ["vitreous", *map(str, words)])
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    found = capsys.readouterr()
    return found.out, found.err, code


@torch.no_grad()
def test_a_clip_gives_open_clips_probabilities(clip, photo):
    folder, theirs = clip
    model = load(folder)
    answer = vitreous.classify(photo, model, classes=CLASSES, template="a photo of {}", device="cpu", top=3)
    x = model.card.preprocess(photo)[None]
    tokens = open_clip.tokenizer.SimpleTokenizer()([f"a photo of {name}" for name in CLASSES])
    wanted = theirs.get_logits(x, tokens)[0].softmax(dim=-1)[0]
    found = {p.class_name: p.probability for p in answer.predictions}
    assert [found[name] for name in CLASSES] == pytest.approx(wanted.tolist(), abs=1e-4)
    assert model.card.head == "projection"  # the caller's model is as it was


@torch.no_grad()
def test_a_siglip_gives_each_sentence_its_own_probability(siglip, photo):
    folder, theirs = siglip
    model = load(folder)
    answer = vitreous.classify(photo, model, classes=CLASSES, device="cpu", top=3)
    tokens = load_text(model).tokenizer(CLASSES)
    logits = theirs(input_ids=tokens, pixel_values=model.card.preprocess(photo)[None]).logits_per_image[0]
    found = {p.class_name: p.probability for p in answer.predictions}
    assert [found[name] for name in CLASSES] == pytest.approx(logits.sigmoid().tolist(), abs=1e-4)
    assert sum(found.values()) != pytest.approx(1, abs=1e-2)


@torch.no_grad()
def test_similarity_is_the_cosine_of_both_towers(clip, photo):
    folder, theirs = clip
    model = load(folder)
    image = theirs.encode_image(model.card.preprocess(photo)[None], normalize=True)
    text = theirs.encode_text(open_clip.tokenizer.SimpleTokenizer()(CLASSES), normalize=True)
    found = vitreous.similarity([photo, photo], CLASSES, model, device="cpu")
    assert torch.allclose(found, (image @ text.T).expand(2, 3), atol=1e-5)
    assert vitreous.similarity(photo, CLASSES[0], model, device="cpu").item() == pytest.approx(found[0, 0].item())


def test_similarity_needs_the_embedding_that_both_towers_share(clip, photo):
    model = load(clip[0])
    assert vitreous.similarity([], CLASSES, model, device="cpu").shape == (0, 3)
    with pytest.raises(ValueError, match="64 features of images and 20 of texts: pass the CLIP or SigLIP as it was"):
        vitreous.similarity(photo, CLASSES, with_words(model, CLASSES), device="cpu")


@pytest.mark.parametrize("texts", [3, [3], ["a cat", None], b"cat"])
def test_what_is_no_text_is_no_sentence(texts):
    with pytest.raises(ValueError, match="expected a list of sentences, each a text, got (3|None|99)"):
        check_sentences(texts)


@torch.no_grad()
def test_an_ensemble_is_the_mean_of_normalised_features(clip):
    tower = load_text(load(clip[0]))
    each = torch.stack([text_features(tower, ["cat"], [template])[0] for template in ENSEMBLE])
    wanted = torch.nn.functional.normalize(each, dim=-1).mean(dim=0)
    assert torch.allclose(text_features(tower, ["dog", "cat"], ENSEMBLE)[1], wanted, atol=1e-5)


@torch.no_grad()
def test_the_target_of_a_siglip_has_the_models_own_probability(siglip):
    model = load(siglip[0])
    x = torch.randn(1, 3, 32, 32)
    alone = with_words(model, ["the bell tower"])(x).sigmoid()
    assert with_target(model, "the bell tower")(x).softmax(dim=-1)[:, 0].item() == pytest.approx(alone.item(), rel=1e-5)
    with pytest.raises(ValueError, match="judges each sentence by itself"):
        with_target(model, "the bell tower", ["a cat"])


def test_the_target_of_a_clip_is_weighed_against_others_and_says_so(clip):
    said = []
    assert with_target(load(clip[0]), "a cat", note=said.append).card.class_names == ("a cat", "a photo")
    assert "against 'a photo'" in said[0]
    assert with_target(load(clip[0]), "a cat", ["a dog", "a cat"]).card.class_names == ("a cat", "a dog")


@pytest.mark.parametrize(
    ("classes", "template", "reason"),
    [
        ([], "{}", "no words were given"),
        (["a cat", " "], "{}", "a class is empty"),
        (["a cat", "a cat"], "{}", "named twice"),
        (["a cat", "a dog"], "a photo", "has {} once"),
        (["a cat", "a dog"], "{} {}", "has {} once"),
        (["a cat"], "{}", "'a cat' alone would always get 100 %"),
        (["x" * 5000], "{}", "at most 1,000 characters"),
        (["a\x1b[2Jcat"], "{}", "a control character"),
        ("a cat", "{}", "expected a list of sentences"),
    ],
)
def test_words_that_cannot_be_classes_are_refused_in_one_line(classes, template, reason, clip, photo):
    with pytest.raises(ValueError, match=reason) as raised:
        vitreous.classify(photo, load(clip[0]), classes=classes, template=template)
    assert "\n" not in str(raised.value)


def test_a_sentence_that_is_cut_is_reported(clip):
    said = []
    with_words(load(clip[0]), ["cat " * 100, "a dog"], note=said.append)
    assert said == [f"{('cat ' * 100).strip()!r:.60} has 102 tokens, the model reads the first 77"]


def test_classify_warns_of_a_sentence_that_is_cut(clip, photo):
    with pytest.warns(UserWarning, match="has 102 tokens, the model reads the first 77"):
        vitreous.classify(photo, load(clip[0]), classes=["cat " * 100, "a dog"])


def test_a_template_without_words_is_refused(photo):
    with pytest.raises(ValueError, match="template is the sentence around classes: name them too"):
        vitreous.classify(photo, "packaged:cifar10", template="x {}")


def test_names_of_folders_become_words():
    names = ["n02123045_tabby_cat", "Golden-Retriever", "n02123045", "__", "a  b"]
    assert [clean_name(name) for name in names] == ["tabby cat", "Golden Retriever", "n02123045", "__", "a b"]


def test_a_file_names_a_class_a_line(tmp_path):
    (tmp_path / "names.txt").write_text("\ufeffa cat\n\n  a dog \r\n", encoding="utf-8")
    assert read_words([str(tmp_path / "names.txt")]) == ("a cat", "a dog")
    with pytest.raises(ValueError, match="name images first"):
        read_words(["a cat", str(tmp_path / "names.txt")])
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ValueError, match="is not a text file"):
        read_words([str(tmp_path / "image.png")])


def test_the_command_classifies_by_words(clip, photo, monkeypatch, capsys):
    hostile = "<script>alert('x')</script> \"[bold]\""
    command = ("classify", photo, "--model", clip[0], "--device", "cpu", "--classes", "a cat", hostile)
    out, _, code = run(monkeypatch, capsys, *command, "--json")
    assert code == 0
    assert {p["class_name"] for p in json.loads(out)[0]["predictions"]} == {"a cat", hostile}
    out, _, _ = run(monkeypatch, capsys, *command)
    assert hostile in out
    assert "by itself" not in out


def test_the_command_says_that_a_siglips_probabilities_are_independent(siglip, photo, monkeypatch, capsys):
    command = ("classify", photo, "--model", siglip[0], "--device", "cpu", "--classes", *CLASSES)
    assert "probability of each by itself" in run(monkeypatch, capsys, *command)[0]


def test_words_for_a_model_without_a_text_tower_are_one_line(photo, monkeypatch, capsys):
    out, err, code = run(monkeypatch, capsys, "classify", photo, "--model", "packaged:cifar10", "--classes", "a cat")
    assert (out, code) == ("", 2)
    assert "packaged:cifar10 has no text tower" in err
    assert len(err.strip().splitlines()) == 1
    _, err, code = run(monkeypatch, capsys, "classify", photo, "--template", "a {}")
    assert code == 2
    assert "--classes: name them too" in err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("classify", "PHOTO", "--model", "CLIP", "--classes", "a cat", ""), "a class is empty: name it in words"),
        (("classify", "PHOTO", "--model", "CLIP", "--classes", "a cat"), "'a cat' alone would always get 100 %"),
        (("classify", "PHOTO", "--model", "CLIP", "--classes", "a cat", " a cat"), "the class 'a cat' is named twice"),
        (("classify", "PHOTO", "--model", "CLIP", "--classes", "EMPTY"), "no words were given"),
        (("classify", "PHOTO", "--model", "CLIP", "--classes", "PHOTO"), "is not a text file"),
        (("classify", "PHOTO", "--model", "BARE", "--classes", "a cat", "a dog"), "it has no tokenizer: put its"),
        (("explain", "PHOTO", "--model", "CLIP", "--target", ""), "a class is empty: name it in words"),
        (("explain", "PHOTO", "--model", "CLIP", "--classes", "a cat"), "'a cat' alone would always get 100 %"),
        (("explain", "PHOTO", "--model", "BARE", "--target", "a cat"), "it has no tokenizer: put its"),
        (("explain", "PHOTO", "--model", "packaged:cifar10", "--classes", "a", "b"), "has no text tower"),
        (("embed", "PHOTO", "--model", "CLIP", "--text", ""), "a class is empty: name it in words"),
        (("embed", "PHOTO", "--model", "packaged:cifar10", "--text", "a cat"), "has no text tower"),
        (("explore", "--model", "packaged:cifar10", "--classes", "a cat", "a dog"), "has no text tower"),
        (("explore", "--model", "SIGLIP", "--classes", "a cat", "a dog"), "name one class, and type others into"),
        (("explore", "--model", "BARE", "--classes", "a cat", "a dog"), "it has no tokenizer: put its"),
        (("evaluate", "--data", "ZOO", "--model", "BARE"), "it has no tokenizer: put its"),
        (("finetune", "--data", "ZOO", "--model", "BARE", "--head", "text"), "it has no tokenizer: put its"),
        (("finetune", "--data", "ZOO", "--model", "packaged:cifar10", "--head", "text"), "has no text tower"),
        (("finetune", "--data", "ZOO", "--model", "CLIP", "--template", "a {}"), "a template is for head=text"),
        (("finetune", "--data", "ZOO", "--model", "CLIP", "--head", "text", "--template", "a"), "has {} once"),
    ],
)
def test_a_wrong_use_of_words_is_one_clear_line(
    words, reason, clip, siglip, photo, zoo, monkeypatch, capsys, tmp_path_factory
):
    here = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(here)
    (here / "names.txt").write_text("\n  \n\n")
    (here / "bare").mkdir()
    for file in ("config.json", "model.safetensors", "preprocessor_config.json"):
        (here / "bare" / file).write_bytes((siglip[0] / file).read_bytes())
    known = {"PHOTO": photo, "CLIP": clip[0], "SIGLIP": siglip[0], "ZOO": zoo}
    known |= {"EMPTY": here / "names.txt", "BARE": here / "bare"}
    out, err, code = run(monkeypatch, capsys, *(known.get(word, word) for word in words))
    assert (out, code) == ("", 2)
    assert reason in err.strip().splitlines()[-1]
    assert len(err.strip().splitlines()) == 1


HOSTILE = "the \"bell\" <script>alert('x')</script> </title> tower & 'co'"


@pytest.mark.slow
@torch.no_grad()
def test_a_sentence_is_explained_as_a_class_is(clip, photo, monkeypatch, capsys, tmp_path):
    page = tmp_path / "page.html"
    command = ("explain", photo, "--model", clip[0], "--device", "cpu", "--passes", "quick", "-o", page)
    out, err, code = run(monkeypatch, capsys, *command, "--target", HOSTILE)
    assert code == 0
    assert HOSTILE in out
    assert "against 'a photo'" in err
    assert "<script>alert" not in page.read_text()
    explained = vitreous.explain(
        photo, load(clip[0]), "relevance,removal", target=HOSTILE, device="cpu", passes="quick"
    )
    assert explained.map("relevance").shape == explained.map("removal").shape == (4, 4)
    assert explained.inspection.target_label == HOSTILE


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--target", "x" * 5000), "at most 1,000 characters"),
        (("--target", "a\x07b"), "a control character"),
        (("--target", "a cat", "--classes", "a\ndog"), "a control character"),
    ],
)
def test_a_sentence_that_cannot_be_shown_is_refused_in_one_line(
    words, reason, clip, photo, monkeypatch, capsys, tmp_path
):
    command = ("explain", photo, "--model", clip[0], "--device", "cpu", "-o", tmp_path / "page.html")
    _, err, code = run(monkeypatch, capsys, *command, *words)
    assert code == 2
    assert reason in err.strip().splitlines()[-1]
    assert not (tmp_path / "page.html").exists()


def test_a_siglip_is_explained_one_sentence_at_a_time(siglip, photo):
    with pytest.raises(ValueError, match="name the one to explain as the target"):
        vitreous.explain(photo, load(siglip[0]), classes=["a cat", "a dog"], device="cpu")
    found = vitreous.explain(photo, load(siglip[0]), "relevance", target="a cat", device="cpu")
    assert found.map("relevance").shape == (4, 4)
    assert {p.class_name for p in found.answer.predictions} == {"a cat", "anything else"}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """A folder whose classes are named by WordNet id and words."""
    folder = tmp_path_factory.mktemp("zoo")
    pixels = np.random.default_rng(1)
    for name in ("n02123045_tabby_cat", "n02099601_golden-retriever", "n03028079_church"):
        (folder / name).mkdir()
        for i in range(4):
            image = Image.fromarray(pixels.integers(0, 255, (40, 40, 3), dtype=np.uint8))
            image.save(folder / name / f"{i}.png")
    return folder


@pytest.mark.parametrize("templates", [["{}"], ["a photo of a {}"], list(ENSEMBLE)])
def test_evaluate_takes_a_folders_names_as_words(templates, clip, zoo):
    model = load(clip[0])
    found = vitreous.evaluate(zoo, model, templates=templates, device="cpu")
    worded = with_words(model, ["golden retriever", "tabby cat", "church"], templates)  # in the folders' order
    assert found.class_names == worded.card.class_names
    wanted = [answer.best.index for answer in vitreous.classify(zoo, worded, device="cpu")]
    labels = [0] * 4 + [1] * 4 + [2] * 4
    assert found.top1 == sum(a == b for a, b in zip(wanted, labels, strict=True)) / 12
    assert found.confusion.sum(dim=0).tolist() == [wanted.count(i) for i in range(3)]


def test_the_command_evaluates_by_names_of_folders(clip, zoo, monkeypatch, capsys):
    command = ("evaluate", "--data", zoo, "--model", clip[0], "--device", "cpu", "--json")
    found = json.loads(run(monkeypatch, capsys, *command, "--ensemble")[0])
    assert found["top1"] == pytest.approx(vitreous.evaluate(zoo, load(clip[0]), templates=ENSEMBLE, device="cpu").top1)
    for words, reason in ((("--template", "a cat"), "has {} once"), (("--ensemble", "--template", "a {}"), "leave")):
        _, err, code = run(monkeypatch, capsys, *command, *words)
        assert code == 2
        assert reason in err.strip().splitlines()[-1]
    _, err, code = run(monkeypatch, capsys, *command[:3], "--model", "packaged:cifar10", "--template", "a {}")
    assert code == 2
    assert "has classes of its own" in err


def test_wordnet_ids_become_imagenets_names_and_numbers_are_refused():
    assert folder_words(["n02123045", "n01440764"]) == ("tabby", "tench")
    with pytest.raises(ValueError, match="'0001' is no word"):
        folder_words(["0001", "0002"])
    with pytest.raises(ValueError, match="n99999999 is not among"):
        folder_words(["n99999999"])


def test_classes_of_one_name_are_reported(clip):
    said = []
    model = with_folder_names(load(clip[0]), ["n02012849_crane", "n03126707_crane"], note=said.append)
    assert said == ["2 classes are called 'crane': the model cannot tell them apart"]
    assert named_by_folders(model, ["n02012849_crane", "n03126707_crane"])


def test_embed_puts_sentences_beside_images_in_one_table(clip, photo, monkeypatch, capsys, tmp_path):
    table, arrays = tmp_path / "features.parquet", tmp_path / "features.npz"
    for output in (table, arrays):
        command = ("embed", photo, "--model", clip[0], "--device", "cpu", "-o", output, "--text", "a cat", "a dog")
        assert "1 image and 2 texts × 20 features" in run(monkeypatch, capsys, *command)[0]
    rows = pyarrow.parquet.read_table(table).to_pylist()
    assert [row["text"] for row in rows] == [None, "a cat", "a dog"]
    assert [row["image"] for row in rows] == [str(photo), None, None]
    features = torch.nn.functional.normalize(torch.tensor([row["features"] for row in rows]), dim=-1)
    wanted = vitreous.similarity(photo, ["a cat", "a dog"], load(clip[0]), device="cpu")
    assert torch.allclose(features[0] @ features[1:].T, wanted, atol=1e-5)
    assert np.load(arrays)["text"].tolist() == ["", "a cat", "a dog"]
    _, err, code = run(monkeypatch, capsys, "embed", photo, "--model", clip[0], "-o", tmp_path / "parts", "--text", "a")
    assert code == 2
    assert "sentences go to one file" in err


def test_the_explorer_takes_sentences_as_classes(clip, siglip):
    with vitreous.explore(clip[0], device="cpu", classes=["a cat", HOSTILE]) as page:
        assert [model.card.class_names for model in page.models.values()] == [("a cat", HOSTILE)]
        (served,) = json.loads(urlopen(page.url + "api/models").read())
        assert (served["classes"], served["classifier"]) == (2, True)
    with vitreous.explore(siglip[0], device="cpu", classes=["a cat"]) as page:
        assert next(iter(page.models.values())).card.class_names == ("a cat", "anything else")
