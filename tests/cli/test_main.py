"""The command line as a user meets it: real processes for start-up and exit codes, calls for the rest."""

import json
import os
import re
import subprocess
import sys
from functools import wraps
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import SMALL
from vitreous.cli.main import COMMANDS, main
from vitreous.cli.usage import PURPOSES, welcome
from vitreous.data.sample_photos import samples
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.save import save


def run(*words, **options):
    environment = os.environ | {"COLUMNS": "100", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "vitreous", *words], capture_output=True, text=True, env=environment, **options
    )


@pytest.fixture(scope="module")
def folder(small_folder):
    return str(small_folder)


@pytest.fixture
def image(tmp_path):
    Image.new("RGB", (40, 30), "teal").save(tmp_path / "teal.png")
    return str(tmp_path / "teal.png")


def test_import_and_help_are_quick_and_torch_free():
    code = "import sys, vitreous, vitreous.cli.main; print('torch' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]
    resource = pytest.importorskip("resource", reason="processor time of a child is read by a POSIX call")
    took = []
    for _ in range(3):  # processor time, which a busy machine does not stretch as it does the clock
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "vitreous", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(took) < 0.3


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 5


def test_the_welcome_names_the_image_that_explain_takes_when_none_is_named():
    assert next(iter(samples())) == "coffee"
    assert re.search(r"vitreous explain +write a page of what .* sees in a cup of coffee", welcome())


@pytest.mark.parametrize("words", [[], ["--help"], ["help"]])
def test_without_a_command_the_welcome_lists_them_all(words, capsys):
    main(words)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 36
    assert max(map(len, lines)) < 100
    listed = [command for commands in PURPOSES.values() for command in commands]
    assert sorted(listed) == sorted(COMMANDS)
    for command in COMMANDS:
        assert sum(line.startswith(f"  {command} ") for line in lines) == 1, command


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_broken_where_the_terminal_ends(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(one == other == "" for one, other in pairwise(lines))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_every_flag_is_for(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    for line in capsys.readouterr().out.splitlines():
        assert not re.match(r"[ │]+(-.*  +)?\((default|required)", line), line


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_no_none(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert "default: None" not in shown
    assert not re.search(r"\{[^}]*\bNone\b", shown)
    if command == "train":
        assert "--statistics {half,imagenet,clip,unit}" in shown
        assert "--crop NUMBER NUMBER" in shown
        assert re.search(r"--channels N .*\(default: 1\)", shown)


def test_help_is_broken_nowhere_else():
    """In a process of its own, where torch is not imported yet."""
    environment = os.environ | {"COLUMNS": "1000"}
    words = [sys.executable, "-m", "vitreous", "embed", "--help"]
    out = subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout
    assert "an interrupted run resumes there, and `torchrun` splits the work." in out
    assert "`torchvision:vit_b_16`, `ViT-B_16.npz`, …), a file or a folder." in out


def test_every_public_name_can_be_imported():
    import vitreous

    for name in vitreous.__all__:
        assert getattr(vitreous, name) is not None
    assert callable(vitreous.embed)  # no module hides a function of the same name
    assert callable(vitreous.evaluate)
    with pytest.raises(AttributeError, match="no 'nothing'"):
        vitreous.nothing  # noqa: B018


def test_classify_prints_json(folder, image, capsys):
    main(["classify", image, "--model", folder, "--json", "--top", "2"])
    (row,) = json.loads(capsys.readouterr().out)
    assert row["image"] == image
    assert [set(p) for p in row["predictions"]] == [{"index", "class_name", "probability", "logit"}] * 2


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_answers_go_to_a_file_and_bad_images_with_them(folder, image, tmp_path, suffix, capsys):
    (tmp_path / "bad.png").write_bytes(b"")
    output = tmp_path / f"answers{suffix}"
    with pytest.raises(SystemExit) as stop:
        main(["classify", image, str(tmp_path / "bad.png"), "--model", folder, "-o", str(output)])
    assert stop.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == f"wrote {output}: 1 image\n"
    assert "bad.png: empty file" in shown.err
    assert shown.err.count("vitreous:") == 1  # one bad image is one line
    if suffix == ".json":
        assert [row.get("error") is None for row in json.loads(output.read_text())] == [True, False]


def test_many_bad_images_are_counted_rather_than_all_named(folder, tmp_path, capsys):
    for i in range(30):
        (tmp_path / f"{i}.png").write_bytes(b"")
    with pytest.raises(SystemExit):
        main(["classify", str(tmp_path), "--model", folder])
    lines = capsys.readouterr().err.splitlines()
    assert sum("empty file" in line for line in lines) == 20
    assert lines[-2:] == ["vitreous: … and 10 more", "vitreous: 30 of 30 images left out"]


def test_another_fit_changes_the_answer(folder, tmp_path, capsys):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 90, 3), dtype=np.uint8)).save(tmp_path / "wide.png")
    logits = []
    for words in ([], ["--fit", "crop"], ["--fit", "squash"], ["--fit", "pad"]):
        main(["classify", str(tmp_path / "wide.png"), "--model", folder, "--json", "--top", "1", *words])
        logits.append(json.loads(capsys.readouterr().out)[0]["predictions"][0]["logit"])
    assert logits[0] == logits[2]  # the usual preprocessing of a ViT made in memory
    assert len(set(logits)) == 3


def test_doctor_lists_the_classes(capsys):
    main(["doctor", "--classes", "--model", "packaged:cifar10"])
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[3].split()) == (10, ["3", "cat"])
    main(["doctor", "--classes", "--json", "--model", "packaged:cifar10"])
    assert json.loads(capsys.readouterr().out)[3] == "cat"


def test_classify_without_arguments_answers_for_the_sample_photographs(capsys):
    main(["classify", "--json"])
    answers = {row["image"]: row["predictions"][0]["class_name"] for row in json.loads(capsys.readouterr().out)}
    assert list(answers) == ["coffee", "chelsea", "camera"]
    assert list(answers.values()) == ["espresso", "Egyptian cat", "tripod"]


def test_good_images_are_answered_and_bad_ones_listed(folder, image, tmp_path, capsys):
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.png").write_text("hello")
    (tmp_path / "nothing").mkdir()
    paths = [image, *(str(tmp_path / name) for name in ("empty.jpg", "text.png", "nothing", "absent.png", "*.gif"))]
    with pytest.raises(SystemExit) as stop:
        main(["classify", *paths, "--model", folder, "--json"])
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert [row["image"] for row in json.loads(printed.out)] == [image]
    for name in ("empty.jpg", "text.png", "nothing", "absent.png", "*.gif"):
        assert sum(name in line for line in printed.err.splitlines()) == 1, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["classify", "--model", "/nowhere/model.pth"], "no file or folder"),
        (["classify", "--model", "vit_bse_patch16_224"], "vit_base_patch16_224"),
        (["classify", "--device", "cuda:9"], "--device cpu"),
        (["classify", "--batch-size", "0"], "must be at least 1"),
        (["classify", "--assume", "norm_eps=-1"], "norm_eps must not be negative"),
        (["classify", "absent.png"], "absent.png: no such file or folder"),
        (["classify", "empty"], "empty: no images in this folder"),
        (["explain", "--views", "atention-maps"], "did you mean attention-maps"),
        (["explain", "-o", "text.txt/report.html"], "text.txt is a file, not a folder: choose another folder"),
        (["evaluate"], "--data NAME|FOLDER"),
        (["evaluate", "--data", "/nowhere"], "neither a folder nor a known dataset"),
        (["evaluate", "--data", "cifr10"], "did you mean cifar10?"),
        (["embed", "x.png", "-o", "features.csv"], ".parquet or .npz"),
        (["embed", "x.png", "-o", "features.npy"], ".parquet or .npz"),
        (["embed", "x.png", "-o", "-"], "- would be standard output"),
        (["classify", "x.png", "-o", "-"], "- would be standard output"),
        (["embed", "x.png", "-o", ".csv"], ".csv is a suffix without a name: try out.csv"),
        (["classify", "x.png", "-o", ".json"], ".json is a suffix without a name: try out.json"),
        (["explain", "-o", ".html"], ".html is a suffix without a name: try out.html"),
        (["convert", "packaged:cifar10", ".npz", "--to", "google"], ".npz is a suffix without a name"),
        (["evaluate", "--data", "empty", "-o", "result.json"], "result.json is the name of a file, expected a folder"),
        (["benchmark", "-o", "text.txt"], "text.txt is a file, not a folder: choose another folder with -o"),
        (["compare", "a", "b", "--data", "empty", "-o", "-"], "- would be standard output"),
        (["train", "digits", "--output", "-"], "- would be standard output"),
        (["embed", "x.png", "-o", "x.npz", "--part-size", "2"], "--part-size is for a folder of parts"),
        (["embed", "x.png", "--tokens", "-o", "features.csv"], ".parquet, .npy or .npz"),
        (["embed", "x.png", "--tokens", "--text", "a cat"], "leave --tokens or --text out"),
        (["embed", "text.txt", "--tokens", "--merge", "8"], "leave --fast and --merge out"),
        (["evaluate", "--data", "empty", "--tokens"], "add --probe linear"),
        (["evaluate", "--data", "empty", "--tokens", "--probe", "knn"], "add --probe linear"),
        (["evaluate", "--data", "empty", "--probe", "linear", "--blocks", "1", "2"], "add --tokens"),
        (["convert", "packaged:cifar10", "out.npz", "--to", "timm"], "is not written as .npz"),
        (
            ["convert", "packaged:cifar10", "text.txt/out", "--to", "timm"],
            "text.txt/out: not a directory: check the path",
        ),
        (["convert", "packaged:cifar10", "out", "--to", "pytorch"], "pytorch"),
        (["convert", "packaged:cifar10", "out.pth", "--to", "onnx"], "onnx is written as .onnx: try out.onnx"),
        (["convert", "packaged:cifar10", "out", "--to", "timm", "--dynamic-size"], "are for onnx and torch-export"),
        (["train", "digts"], "did you mean digits?"),
        (["train", "--epoch", "3"], "--epochs INT"),
        (["train", "cifar10", "--no-mixup"], "train takes no --no-mixup"),
        (["train", "digits", "--resume", "run"], "keeps the settings of that run: leave out digits"),
        (["clasify"], "did you mean classify?"),
        (
            ["classify", "--modle", "x"],
            "classify takes no --modle: did you mean --model NAME? (vitreous",
        ),
        (["classify", "--top", "zero"], "--top expects INT, got 'zero': The number of classes to show"),
        (["classify", "--top"], "--top expects a value"),
        (["classify", "--precision", "half"], "--precision is one of fp32, bf16, fp16, int8, fp8, got 'half'"),
        (["classify", "--image-size", "x"], "--image-size expects HEIGHT [WIDTH], got ['x']"),
        (["convert"], "convert needs IN, OUT and --to {timm,"),
        (["evaluate", "here"], "evaluate takes no here: did you mean --data here? (vitreous"),
        (["finetune", "here"], "finetune takes no here: did you mean --data here? (vitreous"),
        (["explore", "text.txt"], "explore takes no text.txt: drop images into the page"),
        (["text.txt"], "the command comes before text.txt, as in vitreous classify text.txt"),
        (["train", "empty"], "empty is not a recipe: for your own images write --data empty"),
        (["classify", "txet.txt"], "txet.txt: no such file or folder: did you mean text.txt?"),
        (["explain", "text.txt", "-o", "text.txt"], "the page is an .html file, got text.txt: name text.html"),
        (["evaluate", "--data", "empty", "--probe", "knn", "--fast"], "leave --fast, --merge and --precision out"),
        (["--json", "classify"], "the command comes before --json"),
    ],
)
def test_a_mistake_says_what_to_do_and_is_exit_code_2(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("")
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "text.txt"}


@pytest.mark.slow
def test_a_mistake_is_one_line_of_a_real_process_too(tmp_path):
    done = run("classify", "--model", "/nowhere/model.pth", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "loading PyTorch …",
        "vitreous: there is no file or folder /nowhere/model.pth: check the path",
    ]


def test_lists_and_json_begin_without_a_line(monkeypatch):
    asked = []

    def record(function, *, say):
        asked.append(say)
        return wraps(function)(lambda **flags: None)

    monkeypatch.setattr("vitreous.cli.main.with_torch", record)
    for words in (["models"], ["views"], ["doctor", "--json"], ["doctor"]):
        main(words)
    assert asked == [False, False, False, True]


def test_debug_shows_the_traceback():
    with pytest.raises(FileNotFoundError):  # which Python prints with its traceback
        main(["classify", "--model", "/nowhere/model.pth", "--debug"])


def test_a_headless_model_is_sent_to_embed(folder, image, tmp_path, capsys):
    from vitreous.weights.load import load

    save(load(folder, classes=0), tmp_path / "headless")
    with pytest.raises(SystemExit) as stop:
        main(["classify", image, "--model", str(tmp_path / "headless")])
    assert stop.value.code == 2
    assert "vitreous embed" in capsys.readouterr().err
    main(["embed", image, "--model", str(tmp_path / "headless"), "-o", str(tmp_path / "f.npz")])
    assert "1 image × 48 features" in capsys.readouterr().out


def test_patch_features_are_written_but_for_unreadable_images(folder, image, tmp_path, capsys):
    (tmp_path / "bad.png").touch()
    Image.new("RGB", (30, 40), "gold").save(tmp_path / "gold.png")
    for output in ("f.npy", "f.parquet", "f.npz"):
        others = [str(tmp_path / name) for name in ("bad.png", "gold.png")]
        words = ["embed", image, *others, "--model", folder, "--tokens"]
        with pytest.raises(SystemExit) as stop:
            main([*words, "-o", str(tmp_path / output)])
        assert stop.value.code == 2
        said = capsys.readouterr()
        assert said.out == f"wrote {tmp_path / output}: 2 images × 4×4 patches × 48 features\n"
        assert "bad.png: empty file" in said.err
    with pytest.raises(SystemExit):
        main([*words, "-o", str(tmp_path / "f.npy"), "--json"])
    summary = {"output": str(tmp_path / "f.npy"), "images": 2, "rows": 4, "columns": 4, "features": 48}
    assert json.loads(capsys.readouterr().out) == summary
    with pytest.raises(SystemExit):
        main(
            ["embed", str(tmp_path / "bad.png"), "--model", folder, "--tokens", "-o", str(tmp_path / "g.npy"), "--json"]
        )
    assert json.loads(capsys.readouterr().out) == {"output": None, "images": 0, "features": None}
    assert not list(tmp_path.glob("*g.npy*"))


@pytest.mark.slow
def test_evaluate_prints_json_and_writes(tmp_path, capsys):
    (tmp_path / "images/cat").mkdir(parents=True)
    for i in range(4):
        samples()["chelsea"].rotate(3 * i).save(tmp_path / f"images/cat/{i}.png")
    data, out = str(tmp_path / "images"), str(tmp_path / "out")
    main(["evaluate", *SMALL, "--data", data, "--limit", "3", "--json", "--output", out])
    result = json.loads(capsys.readouterr().out)
    assert result["images"] == 3
    assert result["top1"] == 1
    assert (tmp_path / "out/confusion.npz").exists()


@pytest.mark.parametrize("probe", [[], ["--probe", "knn"]])
def test_evaluate_prints_its_result_and_ends_with_2_if_images_are_unreadable(probe, tmp_path, capsys):
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(3):
            samples()["chelsea"].rotate(3 * i).save(tmp_path / f"images/{name}/{i}.png")
    words = ["evaluate", *SMALL, "--data", str(tmp_path / "images"), "--json", *probe]
    main(words)
    assert json.loads(capsys.readouterr().out)["unreadable"] == 0
    (tmp_path / "images/cat/broken.png").write_bytes(b"no image")
    with pytest.raises(SystemExit) as stop:
        main(words)
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert json.loads(out)["unreadable"] == 1
    assert ("1 unreadable image left out" if probe else "broken.png") in err


def test_evaluate_says_that_folders_are_read_as_class_indices(tmp_path, capsys):
    (tmp_path / "images/3").mkdir(parents=True)
    samples()["chelsea"].save(tmp_path / "images/3/0.png")
    main(["evaluate", *SMALL, "--data", str(tmp_path / "images")])
    assert "class names '3' are read as class indices: 'cat'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_probe_splits_a_folder_as_training_does(tmp_path, capsys):
    for name, image in samples().items():
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(5):
            image.rotate(3 * i).save(tmp_path / f"images/{name}/{i}.png")
    main(["evaluate", *SMALL, "--data", str(tmp_path / "images"), "--probe", "knn", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["images"] + result["train_images"] == 15
    assert 3 <= result["images"] <= 6


def test_convert_and_doctor(folder, tmp_path, capsys):
    main(["convert", folder, str(tmp_path / "hf"), "--to", "huggingface"])
    assert "wrote" in capsys.readouterr().out
    main(["doctor", "--model", str(tmp_path / "hf"), "--trace", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["report"]["format"] == "huggingface"
    assert found["parameters"] == sum(p.numel() for p in ViT(ViTConfig(**found["config"])).parameters())
    assert found["shapes"]["attention: queries × keys"] == "4×17×17"
    assert found["shapes"]["queries, keys and values, joined"] == "17×144"
    main(["doctor", "--model", str(tmp_path / "hf")])
    assert "FLOPs an image" in capsys.readouterr().out


@pytest.mark.slow
def test_convert_writes_a_graph_that_answers_as_classify_does(folder, image, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra [export] is not installed")
    from vitreous.data.preprocess import Preprocess

    out = tmp_path / "model.onnx"
    main(["convert", folder, str(out), "--to", "onnx", "--dynamic-size"])
    printed = capsys.readouterr()
    assert printed.out == f"wrote {out}\n"
    assert "largest difference from the model" in printed.err
    main(["classify", image, "--model", folder, "--top", "1", "--json"])
    (best,) = json.loads(capsys.readouterr().out)[0]["predictions"]
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    own = json.loads(session.get_modelmeta().custom_metadata_map["vitreous"])
    pixels = Preprocess.from_dict(own["preprocess"])(Image.open(image))[None].numpy()
    (logits,) = session.run(["logits"], {"images": pixels})
    assert logits[0].argmax() == best["index"]
    assert logits[0].max() == pytest.approx(best["logit"], abs=1e-4)


def test_doctor_prints_the_shapes_of_vit_base(tmp_path, capsys):
    from vitreous.models.summary import trace
    from vitreous.models.variants import variant

    rows = dict(trace(ViT(variant("vit_base_patch16_224", depth=1)).eval()))
    shapes = list(rows.values())
    for shape in ("196×768", "197×768", "197×2304", "12×197×64", "12×197×197"):
        assert shape in shapes


@pytest.mark.slow
def test_flops_agree_with_the_formula():
    from vitreous.models.summary import count_flops
    from vitreous.models.variants import variant

    config = variant("vit_base_patch16_224")
    t, d, m = 197, 768, 3072
    block = 2 * (t * d * 3 * d + 2 * t * t * d + t * d * d + 2 * t * d * m)
    whole = 2 * 196 * 768 * d + 12 * block + 2 * d * 1000
    with torch.device("meta"):
        assert count_flops(ViT(config)) == whole
    assert whole / 1e9 == pytest.approx(35.13, abs=0.03)


def test_a_dataset_is_shown_a_row_a_class(tmp_path, capsys):
    main(["datasets", "--show", "digits", "-o", str(tmp_path / "digits.png")])
    assert "10 classes, 360 images" in capsys.readouterr().out
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):
        main(["datasets", "--show", "digits", "-o", str(tmp_path / "digits.txt")])
    assert "must end in .png" in capsys.readouterr().err


def test_models_and_datasets_are_listed(capsys):
    main(["models", "--search", "tiny_patch16_224"])
    out = capsys.readouterr().out
    assert "vit_tiny_patch16_224" in out
    assert "5,717,416" in out
    main(["datasets"])
    assert "cifar10" in capsys.readouterr().out


def test_brackets_in_names_are_shown_as_they_are(folder, tmp_path, capsys):
    brackets = tmp_path / "q[" / "b] [red]x"  # read as markup, the path closes a tag that was never opened
    brackets.mkdir(parents=True)
    for i in range(6):
        Image.new("RGB", (40, 30), "teal").save(brackets / f"{i} [bold].png")
    main(["classify", str(brackets / "0 [bold].png"), "--model", folder])
    assert "[bold].png" in capsys.readouterr().out.replace("\n", "")
    main(["classify", str(brackets), "--model", folder])
    assert "5 [bold].png" in capsys.readouterr().out


@pytest.mark.slow
def test_a_terminal_of_few_letters_gets_an_answer(folder, image):
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "100"}
    words = [sys.executable, "-m", "vitreous", "classify", image, "--model", folder]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "probability" in done.stdout


def test_one_line_says_which_model_answered_if_none_was_named(image, folder, capsys):
    main(["classify", image])
    assert capsys.readouterr().err == "model: packaged:vit_tiny (ViT-Ti/16, 1,000 classes of ImageNet)\n"
    main(["classify", image, *SMALL])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["classify", "explain"])
@pytest.mark.parametrize("name", ["absent.png", "text.jpg"])
def test_where_no_image_can_be_read_that_is_all_that_is_said(command, name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.jpg").write_text("hello")
    with pytest.raises(SystemExit) as stop:
        main([command, name])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"vitreous: {name}: ")


def test_statistics_of_colour_do_not_fit_a_grey_model(image, tmp_path, capsys):
    save(ViT(ViTConfig(image_size=8, patch_size=4, channels=1, width=16, depth=1, heads=2)), tmp_path / "grey")
    with pytest.raises(SystemExit):
        main(["classify", image, "--model", str(tmp_path / "grey"), "--statistics", "clip"])
    assert "takes grey images" in capsys.readouterr().err


def test_names_of_models_are_never_cut(capsys):
    main(["models", "--search", "deit_tiny_distilled"])
    assert "deit_tiny_distilled_patch16_224 " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["models", "--search", "zzz"])
    assert "no model's name contains 'zzz'" in capsys.readouterr().err
