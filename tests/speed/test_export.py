"""Exported graphs, run by onnxruntime and by torch, against the models they came from."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from families import FAMILIES, family, images

from conftest import noise
from vitreous.data.preprocess import HALF, Preprocess
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT, sine_positions
from vitreous.models.vit_config import ViTConfig
from vitreous.speed import export as module
from vitreous.speed.export import KINDS, at_size, convention_of, export
from vitreous.weights.card import Card
from vitreous.weights.positions import CONVENTIONS

SMALL = {"image_size": (12, 24), "patch_size": (4, 6), "width": 24, "depth": 1, "heads": 4, "classes": 5}
MORE = {
    "headless": {"classes": 0},
    "pre-training head": {"representation_size": 12},
    "grey, tanh": {"channels": 1, "activation": "gelu_tanh"},
    "1-D sine": {"position": "sine-1d"},
    "no positions": {"position": "none"},
}
FREE = [  # (family, kind): all that embed in a way of their own; `test_any_size` has every family
    *(
        (name, "onnx")
        for name in ("class token", "distilled", "registers", "no class token", "sine", "1-D sine", "CLIP")
    ),
    ("sine", "torch-export"),
    *((f"a pixel, {kind}", "onnx") for kind in ("linear", "decoder")),
    ("a pixel, decoder", "torch-export"),
]
CONVENTIONS_TRIED = [
    *((name, "onnx") for name in CONVENTIONS if name not in ("timm", "dinov2-registers") and "naflex" not in name),
    ("dinov2", "torch-export"),
]
"""timm's, which DINOv2's with registers equals, is the one of `FREE`; NaFlex's has one size."""
JOINED = ("registers, no class token", "square")  # every part of their graphs is in another family's
FIXED = [(name, "onnx") for name in [*FAMILIES, *MORE] if (name, "onnx") not in FREE and name not in JOINED]
FIXED += [("class token", kind) for kind in KINDS]
"""(family, kind): all that `FREE` leaves out, and one of both kinds whose size is not free."""


def made(name, **changes):
    """One of the families, with one block, or one of those that only an export tells apart."""
    if name not in FAMILIES:
        model = noise(ViT(ViTConfig(**SMALL | MORE[name])))
    elif "dense" in FAMILIES[name]:
        model = family(name, whole=True, **changes)
    else:
        model = family(name, depth=1, **changes)
    if model.config.position.startswith("sine"):
        model.pos_embed = sine_positions(model.config)  # fixed positions are no place for noise
    return model


def resnet(stem="imagenet", side=48):
    model = noise(ResNet(ResNetConfig(18, classes=4, image_size=side, stem=stem)))
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.fill_(4.0)  # a variance, not noise
    model.card = Card("resnet", Preprocess(size=(side, side), resize=side, mean=HALF, std=HALF), tuple("abcd"))
    return model


def needed(kind):
    for name in KINDS[kind].needs:
        pytest.importorskip(name, reason="the extra [export] is not installed")


def written(model, folder, kind, **options):
    needed(kind)
    return export(model, folder / f"graph{KINDS[kind].suffix}", kind, **options)


def run_again(path, kind, x):
    """Open a written file by nothing of ours."""
    if kind == "torch-export":
        return torch.export.load(path).module()(x)
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"images": x.numpy()})[0])


def close(found, expected):
    assert expected.abs().max() > 1e-2, "the model says almost nothing: the comparison would be empty"
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * max(1.0, expected.abs().max().item()))


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(("name", "kind"), FIXED)
def test_every_family_exports_with_a_free_batch(name, kind, tmp_path):
    model = made(name)
    path = written(model, tmp_path, kind).files[0]
    for batch in (1, 5):
        x = images(model, batch)
        close(run_again(path, kind, x), model(x))


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(("name", "kind"), FREE)
def test_every_way_to_embed_exports_with_a_free_size(name, kind, tmp_path):
    model = made(name)
    path = written(model, tmp_path, kind, dynamic_size=True).files[0]
    p, q = model.config.patch
    for batch, size in ((1, model.config.size), (5, (2 * p, 2 * q)), (2, (5 * p, 3 * q))):
        x = torch.randn(batch, model.config.channels, *size)
        close(run_again(path, kind, x), at_size(model, size, "timm")(x))


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(("stem", "kind"), [("imagenet", "onnx"), ("small", "torch-export")])
def test_resnets_export(stem, kind, tmp_path):
    model = resnet(stem)
    done = written(model, tmp_path, kind, dynamic_size=True)
    x = torch.randn(2, 3, 57, 40)
    close(run_again(done.files[0], kind, x), model(x))


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(("convention", "kind"), CONVENTIONS_TRIED)
def test_every_convention_resizes_inside_the_graph(convention, kind, tmp_path):
    model = made("class token")
    done = written(model, tmp_path, kind, dynamic_size=True, resize=convention)
    for size in ((12, 24), (28, 12), (8, 60)):
        x = torch.randn(2, 3, *size)
        close(run_again(done.files[0], kind, x), at_size(model, size, convention)(x))


def test_the_convention_is_the_checkpoints_own(tmp_path):
    model = made("class token")
    assert convention_of(model) == "timm"
    model.card = resnet().card
    for convention in ("torchvision", "google", "dinov2"):
        model.card.resize = convention
        assert convention_of(model) == convention


def carded():
    model = made("class token")
    model.card = Card("vit", Preprocess(size=model.config.size, resize=14, mean=HALF, std=HALF), tuple("abcde"))
    return model


@pytest.mark.slow
def test_onnx_names_its_ends_and_carries_the_card(tmp_path):
    needed("onnx")
    import onnx

    model = carded()
    path = written(model, tmp_path, "onnx").files[0]
    graph = onnx.load(path)
    onnx.checker.check_model(graph)
    assert [value.name for value in graph.graph.input] == ["images"]
    assert [value.name for value in graph.graph.output] == ["logits"]
    first, *rest = graph.graph.input[0].type.tensor_type.shape.dim
    assert first.dim_param == "batch"
    assert [size.dim_value for size in rest] == [3, *model.config.size]
    own = json.loads({entry.key: entry.value for entry in graph.metadata_props}["vitreous"])
    assert own["class_names"] == ["a", "b", "c", "d", "e"]
    assert Preprocess.from_dict(own["preprocess"]) == model.card.preprocess


@pytest.mark.slow
def test_torch_export_carries_the_card(tmp_path):
    path = written(carded(), tmp_path, "torch-export").files[0]
    found = {"vitreous.json": ""}
    torch.export.load(path, extra_files=found)
    assert json.loads(found["vitreous.json"])["class_names"] == ["a", "b", "c", "d", "e"]


@pytest.mark.slow
def test_what_is_no_classifier_gives_features(tmp_path):
    needed("onnx")
    import onnx

    projection = made("CLIP")
    projection.card = Card("clip", Preprocess(size=(12, 24), resize=(12, 24), mean=HALF, std=HALF), head="projection")
    for model in (projection, made("headless")):
        graph = onnx.load(written(model, tmp_path, "onnx").files[0])
        assert [value.name for value in graph.graph.output] == ["features"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_disagrees_is_an_error_and_no_file(kind, tmp_path, monkeypatch):
    needed(kind)
    trace = module.trace

    def wrong(model, *rest):
        program = trace(model, *rest)
        with torch.no_grad():
            model.head.bias += 1  # in the graph's weights as in the model's, so give the model its own again
            model.head.bias = torch.nn.Parameter(model.head.bias - 1)
        return program

    monkeypatch.setattr(module, "trace", wrong)
    (tmp_path / f"graph{KINDS[kind].suffix}").write_bytes(b"an older graph")
    with pytest.raises(ValueError, match="graph is 1 from the model, .* nothing was written"):
        written(made("class token"), tmp_path, kind)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"an older graph"]


@pytest.mark.slow
@torch.no_grad()
def test_large_weights_go_beside_the_graph(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ONE_FILE", 100)
    model = made("class token")
    done = written(model, tmp_path, "onnx")
    assert [path.name for path in done.files] == ["graph.onnx", "graph.onnx.data"]
    assert sorted(tmp_path.iterdir()) == sorted(done.files)
    x = images(model)
    close(run_again(done.files[0], "onnx", x), model(x))


@pytest.mark.slow
@torch.no_grad()
def test_the_model_itself_is_left_as_it_was(tmp_path):
    model = made("class token").train().double()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    written(model, tmp_path, "torch-export")
    assert model.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.slow
def test_a_newer_opset_is_written_where_asked(tmp_path):
    needed("onnx")
    import onnx

    opset = 23
    graph = onnx.load(written(made("class token"), tmp_path, "onnx", opset=opset).files[0])
    assert {entry.version for entry in graph.opset_import if entry.domain == ""} == {opset}


@pytest.mark.parametrize(
    ("model", "name", "kind", "options", "message"),
    [
        (made("class token"), "x.onnx", "tflite", {}, "one of onnx, torch-export, got 'tflite'"),
        (made("class token"), "x.pth", "onnx", {}, "written as .onnx: try x.onnx"),
        (torch.nn.Linear(2, 2), "x.onnx", "onnx", {}, "only ViTs and ResNets are exported, got a Linear"),
        (made("class token"), "x.onnx", "onnx", {"opset": 17}, "at least 18"),
        (made("class token"), "x.onnx", "onnx", {"opset": "18"}, "at least 18, .* got '18'"),
        (made("class token"), "x.pt2", "torch-export", {"opset": 18}, "opset is an option of onnx"),
        (made("class token"), "x.pt2", "torch-export", {"resize": "cubic"}, "resize must be one of"),
        (
            resnet(side=32),
            "x.pt2",
            "torch-export",
            {"dynamic_size": True},
            "33×33 pixels and more, this model 32×32",
        ),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(model, name, kind, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export(model, tmp_path / "out" / name, kind, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("opset", [None, 99])
def test_an_opset_that_cannot_be_read_back_is_one_line(opset, tmp_path, monkeypatch):
    def unreadable(path):
        raise RuntimeError("invalid graph\nand more")

    monkeypatch.setitem(KINDS, "torch-export", replace(KINDS["torch-export"], open=unreadable))
    monkeypatch.setitem(KINDS, "onnx", replace(KINDS["torch-export"], suffix=".onnx", needs=()))
    error, message = (
        (RuntimeError, "invalid graph")  # a bug of ours
        if opset is None
        else (ValueError, r"opset 99 cannot be written here: try 18 \(RuntimeError: invalid graph\)")
    )
    with pytest.raises(error, match=message):
        export(made("class token"), tmp_path / "x.onnx", "onnx", opset=opset)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_not_the_opsets_fault(tmp_path, monkeypatch):
    def full(*given):
        raise OSError("No space left on device")

    monkeypatch.setitem(KINDS, "onnx", replace(KINDS["torch-export"], suffix=".onnx", needs=(), write=full))
    with pytest.raises(OSError, match="No space left"):
        export(made("class token"), tmp_path / "x.onnx", "onnx", opset=99)


def test_a_graph_is_not_written_over_a_folder(tmp_path):
    (tmp_path / "x.pt2").mkdir()
    with pytest.raises(ValueError, match=r"x.pt2 is a folder: name a file that ends in .pt2"):
        export(made("class token"), tmp_path / "x.pt2", "torch-export")


def test_a_missing_extra_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "onnxruntime" else sys)
    with pytest.raises(ImportError, match=r"onnx needs onnxruntime: pip install 'vitreous\[export\]'"):
        export(made("class token"), tmp_path / "x.onnx", "onnx")


@pytest.mark.slow
def test_nan_is_no_agreement(tmp_path):
    model = made("class token")
    with torch.no_grad():
        model.head.bias[0] = np.nan
    with pytest.raises(ValueError, match="nan from the model"):
        written(model, tmp_path, "torch-export")


def test_a_graph_resizes_positions_as_the_library_of_its_model():
    config = ViTConfig(image_size=32, patch_size=8, width=48, depth=1, heads=4, classes=3)
    assert convention_of(ViT(config)) == "timm"
    assert convention_of(ViT(replace(config, prefix_positions=False))) == "flexivit"  # no other has such tensors
