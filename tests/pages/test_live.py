"""The live page: its network gives Python's numbers, images are prepared alike, other models are refused."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.preprocess import Preprocess, default_preprocess
from vitreous.data.sample_photos import samples
from vitreous.inside import contributions
from vitreous.inside.artifacts import with_registers
from vitreous.inside.capture import capture
from vitreous.inside.contributions import fit_contributions
from vitreous.inside.hiding import blurred
from vitreous.inside.intervene import intervene
from vitreous.inside.pruned_gradients import pruned_gradients
from vitreous.inside.removal import RANDOM_BLOBS, RANDOM_SHARES, draw_masks
from vitreous.models.variants import variant
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.pages.live import (
    CONSTANTS,
    LIVE_POLICY,
    LIVE_VIEWS,
    MODEL_VIEWS,
    bundle,
    check_live,
    pack_network,
    round_weights,
    warn_large,
)
from vitreous.pages.render import ASSETS
from vitreous.views.registry import VIEWS
from vitreous.weights.card import Card
from vitreous.weights.load import load

HALF = (0.5, 0.5, 0.5)
SMALL = {"image_size": 24, "patch_size": 8, "width": 16, "depth": 3, "heads": 2, "classes": 11}
CONFIGS = {
    "paper": {},
    "tokens": {"distillation_token": True, "distillation_head": True, "registers": 2, "prefix_positions": False},
    "mean": {"pool": "mean", "class_token": False, "fc_norm": True, "final_norm": False, "activation": "gelu_tanh"},
    "both": {"pool": "token+mean", "layer_scale": 0.5, "swiglu": True, "activation": "gelu"},
    "clip": {"embedding_norm": True, "patch_bias": False, "activation": "quick_gelu", "representation_size": 24},
    "rms": {"norm": "rms", "branch_bias": False, "qkv_bias": False, "patch_norm": True, "qk_norm": True},
    "oblong": {"image_size": (17, 24), "partial_patches": True, "channels": 1, "activation": "relu", "mlp_width": 40},
    "sines": {"position": "sine-2d", "qkv_bias": False, "qv_bias": True, "activation": "silu", "head_bias": False},
}
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no Node on this machine")


def in_node(folder: Path, cases: list) -> None:
    """Run the page's scripts in Node."""
    for path in ASSETS.glob("*.js"):
        shutil.copy(path, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "cases.json").write_text(json.dumps(cases))
    script = Path(__file__).parents[1] / "support" / "live_network.mjs"
    done = subprocess.run(["node", str(script), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def read(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.fromfile(path, np.float32))


def noisy(**changes) -> ViT:
    """A small model with noise in every tensor."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(**{**SMALL, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + 0.1)
    model.card = Card("small", preprocess=default_preprocess(model.config))
    return model


@needs_node
@pytest.mark.parametrize("plain", [False, True], ids=["wasm", "plain"])
def test_the_pages_network_gives_the_numbers_of_python(tmp_path, plain):
    cases, wanted = [], {}
    off, gone, classes = [(0, 1), (2, 0)], [1, 2], [3, 8]
    for number, (name, changes) in enumerate(CONFIGS.items()):
        precision = "int8" if number % 2 else "fp16"
        model = round_weights(noisy(**changes), precision)
        x = torch.randn(1, model.config.channels, *model.config.size)
        (tmp_path / f"{name}.bin").write_bytes(pack_network(model, precision).to_bytes())
        (tmp_path / f"{name}.x").write_bytes(x.numpy().tobytes())
        with torch.no_grad(), capture(model, ["attention", "output"]) as seen:
            logits = model(x)
        with torch.no_grad(), intervene(model, heads_off=off, patches_off=gone), capture(model, "attention") as without:
            changed = model(x)
        found = {"logits": logits, "short": logits, "attention": seen.stack("attention"), "changed": changed}
        found |= {"outputs": seen.stack("output"), "changed-attention": without.stack("attention")}
        silent = {f"blocks.1.{part}_output": torch.zeros_like for part in ("attention", "mlp")}
        with torch.no_grad(), intervene(model, replace=silent):
            found["blocked"] = model(x)
        found["parts"] = pruned_gradients(model, x.expand(2, -1, -1, -1), classes)
        with intervene(model, heads_off=off, patches_off=gone):
            found["changed-parts"] = pruned_gradients(model, x.expand(2, -1, -1, -1), classes)
        wanted[name] = found
        off_names = [f"{block}.{head}" for block, head in off]
        cases.append(
            {"task": "network", "name": name, "plain": plain, "off": off_names, "gone": gone, "classes": classes}
        )
    in_node(tmp_path, cases)
    for name, found in wanted.items():
        for kind, values in found.items():
            got = read(tmp_path / f"{name}.{kind}")
            error = (got - values.detach().flatten()).abs().max() / values.abs().max()
            assert error < 1e-5, (name, kind, error)


@needs_node
def test_the_page_prepares_images_as_pillow_does(tmp_path):
    photo = samples()["chelsea"]
    rng = np.random.default_rng(0)
    steps = [
        {"resize": 248},
        {"resize": (224, 224), "interpolation": "bilinear"},
        {"resize": (256, 256), "cover": True, "interpolation": "lanczos", "crop_rounding": "down"},
        {"resize": (224, 224), "pad": True, "interpolation": "hamming"},
        {"resize": None},
        {"resize": (224, 200), "interpolation": "box"},
        {"resize": (224, 224), "interpolation": "nearest"},
    ]
    images = [photo, photo.rotate(90, expand=True), photo.crop((0, 0, 1, 1))]
    images.append(Image.fromarray(rng.integers(0, 256, (75, 100, 3), dtype=np.uint8)))
    cases, wanted = [], {}
    for i, image in enumerate(images):
        for j, options in enumerate(steps):
            name, preprocess = f"{i}-{j}", Preprocess(size=(224, 224), mean=HALF, std=(0.3, 0.4, 0.5), **options)
            (tmp_path / f"{name}.raw").write_bytes(np.asarray(image).tobytes())
            values = {"pad": False, **preprocess.to_dict()}
            size = {"height": image.height, "width": image.width}
            cases.append({"task": "pixels", "name": name, "preprocess": values, **size})
            wanted[name] = preprocess.pixels(image), preprocess(image)
    in_node(tmp_path, cases)
    for name, (pixels, normal) in wanted.items():
        seen = read(tmp_path / f"{name}.seen").view(224, 224, 3).permute(2, 0, 1)
        assert (seen - pixels).abs().max() <= 1, (
            name
        )  # Pillow 13 resizes columns first where that is cheaper, older ones never
        if torch.equal(seen, pixels.float()):
            assert torch.equal(read(tmp_path / f"{name}.normal"), normal.flatten()), name


@needs_node
def test_the_page_fits_contributions_and_blurs_as_python_does(tmp_path):
    torch.manual_seed(0)
    grid, generator = (5, 6), torch.Generator().manual_seed(0)
    masks = draw_masks(grid, 40, RANDOM_SHARES, RANDOM_BLOBS, generator).double()
    truth = torch.randn(30).double()
    scores = masks @ truth - 2 + 0.3 * torch.randn(40)
    cases, wanted = [], {}
    for name, prior in {"none": 0 * truth, "good": truth + 0.3 * torch.randn(30), "wrong": -truth}.items():
        wanted[name] = fit_contributions(masks, scores, ["blur"] * 40, prior.view(grid))
        values = {"masks": masks.int().tolist(), "scores": scores.tolist(), "prior": prior.tolist()}
        cases.append({"task": "contributions", "name": name, "grid": grid, "constants": CONSTANTS, **values})
    x = torch.randn(1, 3, 20, 24)
    (tmp_path / "image.x").write_bytes(x.numpy().tobytes())
    cases.append({"task": "blur", "name": "image", "channels": 3, "size": (20, 24), "grid": grid})
    in_node(tmp_path, cases)
    for name, (mean, error) in wanted.items():
        torch.testing.assert_close(read(tmp_path / f"{name}.map").double(), mean, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(read(tmp_path / f"{name}.error").double(), error, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(read(tmp_path / "image.soft").view_as(x), blurred(x, 4.0, 4.0), atol=1e-5, rtol=1e-4)
    assert CONSTANTS["reaches"] == contributions.REACHES


@pytest.mark.slow
def test_the_shipped_kernels_are_the_build_of_their_source(tmp_path):
    pytest.importorskip("ziglang", reason="the compiler of the extra [test] is not installed")
    script = Path(__file__).parents[2] / "benchmarks" / "build_kernels.py"
    subprocess.run([sys.executable, str(script), "--check", str(tmp_path / "kernels.wasm")], check=True)
    assert (tmp_path / "kernels.wasm").read_bytes() == (ASSETS / "kernels.wasm").read_bytes()


def test_kernels_are_small():
    assert (ASSETS / "kernels.wasm").stat().st_size < 30_000


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rope": "axial"}, "rope='axial'"),
        ({"relative_position": "table"}, "relative_position='table'"),
        ({"pool": "attention"}, "pool='attention'"),
        ({"talking_heads": True}, "talking_heads=True"),
        ({"post_norm": True}, "post_norm=True"),
        ({"residual_norm": True}, "residual_norm=True"),
        ({"classes": 0}, "no classifier"),
        ({"width": 12, "heads": 3}, "multiples of 8"),
        ({"channels": 4}, "channels=4"),
        ({"head_norm": True}, "head_norm=True"),
        ({"dense": "linear", "dense_blocks": (0,)}, "dense='linear'"),
    ],
)
def test_a_model_that_the_page_cannot_run_is_refused_in_one_line(changes, reason):
    with pytest.raises(ValueError, match=reason) as error:
        check_live(ViT(ViTConfig(**{**SMALL, **changes})))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("a live page cannot run this model")


def test_test_time_registers_are_refused():
    model = with_registers(ViT(ViTConfig(**{**SMALL, "depth": 2})), [(0, 3)])
    with pytest.raises(ValueError, match="test-time registers"):
        check_live(model)


def test_every_field_of_a_config_is_known_refused_or_in_the_weights():
    from vitreous.pages.live import CONFIG, UNKNOWN

    inside = {"image_size", "patch_size"}  # sent as size, patch and grid
    weights = {"position", "patch_bias", "qkv_bias", "qv_bias", "branch_bias", "layer_scale", "representation_size"}
    weights |= {"head_bias", "partial_patches"}  # a part that is missing has no tensor; the grid says how many patches
    training = {"dropout", "attention_dropout", "stochastic_depth", "position_std"}
    belongs = {"rope_temperature", "rope_offset", "rope_reference", "rope_order", "relative_width"}  # to refused ones
    belongs |= {"pool_heads", "pool_mlp_width", "pool_layers", "pool_prefix", "dense_blocks"}
    known = {*CONFIG, *UNKNOWN} | inside | weights | training | belongs
    assert known == {field.name for field in ViTConfig.__dataclass_fields__.values()}


def test_only_large_models_get_a_warning():
    assert warn_large(noisy(), "fp16") is None
    with torch.device("meta"):
        large = warn_large(ViT(replace(ViTConfig(), depth=2, width=4096, heads=64)), "fp16")
        base, small = (ViT(variant(f"vit_{size}_patch16_224", classes=1000)) for size in ("base", "small"))
    assert large.startswith("a large page: about ")
    assert warn_large(base, "fp16") == (
        "a large page: about 190 MB, 346 MB of memory once open, 1 s an answer and 2 min a removal map"
    )
    assert "about 104 MB" in warn_large(base, "int8")
    assert warn_large(small, "fp16") is None


def test_rounding_gives_a_copy_and_rounds_matrices_alone():
    model = noisy()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rounded = round_weights(model, "int8")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    now = rounded.state_dict()
    assert torch.equal(now["blocks.0.norm1.weight"], before["blocks.0.norm1.weight"])
    step = before["head.weight"].abs().amax(dim=1, keepdim=True) / 127
    difference = (now["head.weight"] - before["head.weight"]).abs()
    assert difference.max() > 0
    assert (difference <= step / 2 + 1e-6).all()
    assert rounded.card is model.card


def test_the_packaged_model_is_exact_in_fp16():
    model = load("packaged:cifar10")
    rounded = round_weights(model, "fp16")
    for (name, value), now in zip(model.state_dict().items(), rounded.state_dict().values(), strict=True):
        assert torch.allclose(value, now, rtol=5e-4, atol=1e-7), name


def test_numbers_that_16_bits_cannot_hold_are_refused():
    model = noisy()
    with torch.no_grad():
        model.head.weight[0, 0] = 1e6
    with pytest.raises(ValueError, match="head holds numbers beyond 65,504"):
        pack_network(model, "fp16")
    pack_network(model, "int8")


def test_the_worker_is_one_script_without_modules():
    text = bundle("worker.js")
    assert not any(line.startswith(("import ", "export ")) for line in text.splitlines())
    assert text.index('modules["kernels.js"] =') < text.index('modules["worker.js"] =')
    assert "</script" not in text


def test_the_policy_allows_webassembly_and_forbids_every_connection():
    assert "'wasm-unsafe-eval'" in LIVE_POLICY
    assert "worker-src blob:" in LIVE_POLICY
    assert LIVE_POLICY.startswith("default-src 'none'")
    assert "connect-src" not in LIVE_POLICY


def test_live_views_are_views():
    assert set(LIVE_VIEWS) | set(MODEL_VIEWS) <= set(VIEWS)
    assert not set(LIVE_VIEWS) & set(MODEL_VIEWS)
