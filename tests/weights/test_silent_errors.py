"""Checkpoints that once gave other numbers than their own library in silence: each is exact or refused in one line."""

import argparse
import json
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from originals import SMALL_CLASSIFIER
from PIL import Image
from safetensors.torch import load_file, save_file
from torchvision.models import ViT_B_16_Weights
from torchvision.models.vision_transformer import VisionTransformer

from conftest import assert_same, noise
from vitreous.data.preprocess import HALF, Preprocess
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.classify import top_classes
from vitreous.weights.card import Card
from vitreous.weights.convert import convert
from vitreous.weights.load import load
from vitreous.weights.names import parse
from vitreous.weights.save import save

TIMM = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4}
X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def timm_folder(folder, architecture="vit_base_patch16_224", classes=7, sizes=TIMM, **arguments):
    """A noisy model of timm's and the folder that it would publish."""
    folder.mkdir(exist_ok=True)
    theirs = noise(timm.create_model(architecture, num_classes=classes, **sizes | arguments))
    size = [theirs.patch_embed.proj.in_channels, *theirs.patch_embed.img_size]
    config = {"architecture": architecture, "num_classes": classes, "model_args": sizes | arguments}
    config["pretrained_cfg"] = {"input_size": size, "mean": HALF, "std": HALF, "fixed_input_size": True}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(theirs.state_dict(), folder / "model.safetensors")
    return theirs


def huggingface_folder(folder, name="ViTForImageClassification", **options):
    config = getattr(transformers, name.partition("For")[0].removesuffix("Model") + "Config")(
        **SMALL_CLASSIFIER | options
    )
    theirs = noise(getattr(transformers, name)(config))
    theirs.save_pretrained(folder)
    return theirs


def drop(folder, *beginnings, ends=""):
    """Remove tensors from a folder's file."""
    tensors = load_file(folder / "model.safetensors")
    kept = {k: v for k, v in tensors.items() if not (k.startswith(beginnings) and k.endswith(ends))}
    assert len(kept) < len(tensors)
    save_file(kept, folder / "model.safetensors")


def change(folder, **fields):
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))


def refused(path, message, **options):
    with pytest.raises(ValueError, match=message) as error:
        load(path, **options)
    assert "\n" not in str(error.value)


# --- parts that are missing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beginning", "end", "message"),
    [
        ("blocks.2.", "", "config.json says depth=3, but its tensors say depth=2"),
        ("head.bias", "", "config.json says head_bias=True, but its tensors say head_bias=False"),
        ("blocks.", "qkv.bias", "config.json says qkv_bias=True, but its tensors say qkv_bias=False"),
        ("patch_embed.proj.bias", "", "config.json says patch_bias=True"),
        ("head.", "", "config.json says classes=7, but its tensors say classes=0"),
        ("norm.", "", "config.json says final_norm=True"),
        ("blocks.1.attn.qkv.bias", "", r"not in the checkpoint: blocks\.1\.attn\.qkv\.bias"),
    ],
)
def test_a_part_that_the_config_promises_is_missing(tmp_path, beginning, end, message):
    timm_folder(tmp_path)
    drop(tmp_path, beginning, ends=end)
    refused(tmp_path, message)


@pytest.mark.parametrize(
    ("beginning", "end", "message"),
    [
        ("classifier.", "", "config.json says classes=7, but its tensors say classes=0"),
        ("classifier.bias", "", "config.json says head_bias=True"),
        ("vit.", "query.bias", r"has .*key\.bias but not .*query\.bias"),
        ("vit.encoder.layer.2.", "", "config.json says depth=3, but its tensors say depth=2"),
    ],
)
def test_a_part_that_transformers_config_promises_is_missing(tmp_path, beginning, end, message):
    huggingface_folder(tmp_path)
    drop(tmp_path, beginning, ends=end)
    refused(tmp_path, message)


def test_transformers_qkv_bias_is_true_and_there_are_none(tmp_path):
    huggingface_folder(tmp_path, qkv_bias=False)
    change(tmp_path, qkv_bias=True)
    refused(tmp_path, "config.json says qkv_bias=True, but its tensors say qkv_bias=False")


@torch.no_grad()
def test_class_names_alone_promise_no_head(tmp_path):
    """A backbone that was published with the names of the classes that it was trained on."""
    theirs = huggingface_folder(tmp_path, "Dinov2Model")
    change(tmp_path, id2label={"0": "cat", "1": "dog"}, architectures=["Dinov2Model"])
    assert_same(load(tmp_path)(X), theirs(X).pooler_output)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["blocks.2.", "head.bias", "patch_embed.proj.bias", "norm."])
def test_a_part_is_missing_in_a_bare_file_with_a_known_name(tmp_path, end):
    state = timm.create_model("vit_tiny_patch16_224").state_dict()
    kept = {k: v for k, v in state.items() if not k.startswith(end.replace("2", "11"))}
    torch.save(kept, tmp_path / "vit_tiny_patch16_224.pth")
    refused(tmp_path / "vit_tiny_patch16_224.pth", "but its tensors say|unlike those of any known model")


@pytest.mark.parametrize("end", ["qkv.bias", "patch_embed.proj.bias", "norm.weight"])
def test_a_part_is_missing_in_a_bare_file(tmp_path, end):
    state = timm.create_model("vit_base_patch16_224", num_classes=7, **TIMM).state_dict()
    kept = {k: v for k, v in state.items() if not (k.endswith(end) or (end == "norm.weight" and k == "norm.bias"))}
    torch.save(kept, tmp_path / "mine.pth")
    refused(tmp_path / "mine.pth", "--assume|incomplete", assume={"heads": 4})


@torch.no_grad()
def test_dinov2_with_registers_without_its_mask_token(tmp_path):
    theirs = noise(timm.create_model("vit_base_patch14_reg4_dinov2", num_classes=0, **TIMM))
    state = theirs.state_dict()
    state["register_tokens"] = state.pop("reg_token")
    state["pos_embed"] = torch.cat([torch.zeros(1, 1, 48), state["pos_embed"]], dim=1)  # DINOv2's class position
    torch.save(state, tmp_path / "dinov2.pth")
    assert_same(load(tmp_path / "dinov2.pth", assume={"heads": 4})(X), theirs(X))


# --- tensors that are left over -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["head.0.weight", "head.2.weight", "head.fc.weight", "fc.weight", "pre_head.bias", "gate"]
)
def test_a_tensor_that_no_table_lists_is_refused_until_the_user_says_so(tmp_path, name):
    timm_folder(tmp_path, classes=0)
    tensors = load_file(tmp_path / "model.safetensors") | {name: torch.ones(7, 48)}
    save_file(tensors, tmp_path / "model.safetensors")
    refused(tmp_path, f"it has tensors that this model does not: {name}.*--assume ignored={name}")
    assert load(tmp_path, assume={"ignored": [name]}).card.report.ignored == [f"{name} (as you said)"]


# --- contradictions -----------------------------------------------------------------------------------------


def test_the_config_says_vit_tiny_and_the_weights_are_vit_small(tmp_path):
    theirs = timm.create_model("vit_small_patch16_224", depth=1)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_tiny_patch16_224", "num_classes": 1000}))
    refused(tmp_path, "config.json says patch_size|config.json says width=192, but its tensors say width=384")


@pytest.mark.slow
@torch.no_grad()
def test_vit_base_gap_has_sixteen_heads(tmp_path):
    theirs = timm_folder(tmp_path, "vit_base_patch16_gap_224", sizes={"img_size": 32, "embed_dim": 64, "depth": 1})
    assert load(tmp_path).config.heads == 16
    assert_same(load(tmp_path)(X), theirs(X))
    state = timm.create_model("vit_base_patch16_gap_224", depth=12, num_classes=7).state_dict()
    torch.save(state, tmp_path / "mine.pth")
    refused(tmp_path / "mine.pth", "no file states heads .*12 or 16.*--assume heads=N")


def test_a_config_that_contradicts_itself(tmp_path):
    timm_folder(tmp_path)
    change(tmp_path, global_pool="avg")
    refused(tmp_path, "contradicts itself: it says global_pool='avg'.*make it 'token'")


@pytest.mark.parametrize("stated", [3, 0, -1, None, "7"])
def test_numbers_of_classes_that_contradict_each_other(tmp_path, stated):
    timm_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    change(tmp_path, num_classes=stated, model_args=config["model_args"] | {"num_classes": 7})  # timm writes both
    refused(tmp_path, f"contradicts itself: it says num_classes={stated!r}, and .* make it 7")


@pytest.mark.slow
def test_a_name_that_contradicts_the_tensors(tmp_path):
    torch.save(timm.create_model("vit_small_patch16_224").state_dict(), tmp_path / "vit_tiny_patch16_224.pth")
    refused(tmp_path / "vit_tiny_patch16_224.pth", "vit_tiny_patch16_224 says width=192, but its tensors say width=384")


# --- fields of config files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pool_include_prefix": True, "global_pool": "avg"}, "pool_include_prefix=True is not supported"),
        ({"act_layer": "mish"}, "act_layer='mish' is not supported"),
        ({"act_layer": "hard_swish"}, "act_layer='hard_swish' is not supported"),
    ],
)
def test_an_argument_of_timm_that_changes_the_numbers(tmp_path, arguments, message):
    timm_folder(tmp_path, **arguments)
    refused(tmp_path, message)


@torch.no_grad()
@pytest.mark.parametrize("pool", ["token", "avg"])
def test_a_norm_after_pooling_with_either_pool(tmp_path, pool):
    theirs = timm_folder(tmp_path, fc_norm=True, global_pool=pool)
    assert_same(load(tmp_path)(X), theirs(X))


@torch.no_grad()
@pytest.mark.parametrize("quick", ["quickgelu_", ""])
def test_quickgelu_in_the_name_of_an_architecture(tmp_path, quick):
    theirs = timm_folder(tmp_path, f"vit_base_patch16_clip_{quick}224")
    assert_same(load(tmp_path)(X), theirs(X))
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")  # a bare file could be either
    refused(tmp_path / "mine.pth", "activation .*quick_gelu", assume={"heads": 4})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("vit_base_patch16_rpn_224", "qkv_bias=False: a part is missing", marks=pytest.mark.slow),
        ("vit_small_patch16_rope_ape_224", "no file states rope of a model .*axial or none.*architecture=NAME"),
    ],
)
def test_a_bare_file_that_a_plain_vit_could_have(tmp_path, name, message):
    theirs = timm.create_model(name, img_size=32, patch_size=8)
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    refused(tmp_path / "mine.pth", message)


@pytest.mark.slow
@torch.no_grad()
def test_a_bare_file_with_norms_after_the_branches(tmp_path):
    theirs = noise(timm.create_model("vit_base_patch16_rpn_224", img_size=32, patch_size=8, num_classes=5))
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    ours = load(tmp_path / "mine.pth", assume={"qkv_bias": False})
    assert ours.config.post_norm
    assert "post_norm" in ours.card.report.assumed
    assert_same(ours(X), theirs(X))


def test_transformers_pooler_with_another_activation(tmp_path):
    huggingface_folder(tmp_path, "ViTModel", pooler_act="relu")
    refused(tmp_path, "pooler_act='relu' is not supported")


def test_an_unknown_field_of_a_config(tmp_path):
    huggingface_folder(tmp_path)
    change(tmp_path, attention_window=7)
    refused(tmp_path, "has the field attention_window=7, which is not known to be harmless")
    assert load(tmp_path, assume={"ignored": ["attention_window"]}).config.classes == 7


@pytest.mark.parametrize("removed", ["heads", "norm_eps", "pool"])
def test_a_field_is_missing_in_our_own_config(tmp_path, removed):
    from vitreous.weights.save import save

    save(ViT(ViTConfig(image_size=16, patch_size=8, width=48, depth=1, heads=4, classes=3)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["vitreous"]["config"][removed]
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused(tmp_path, f"does not state {removed}")


@pytest.mark.parametrize("head", ["project", 3, None, []])
def test_a_head_of_another_kind_in_our_own_config(tmp_path, head):
    """Read as no classifier, it would lose the names of the classes."""
    for to in ("vitreous", "timm"):
        model = model_of()
        model.card = replace(model.card, class_names=("a", "b", "c"))
        convert(model, tmp_path / to, to)
        config = json.loads((tmp_path / to / "config.json").read_text())
        config.setdefault("vitreous", {})["head"] = head
        (tmp_path / to / "config.json").write_text(json.dumps(config))
        refused(tmp_path / to, "config.json says head=.*expected one of classifier, projection, none")


# --- conversion ---------------------------------------------------------------------------------------------


def model_of(preprocess=None, **changes):
    shape = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 2, "heads": 4, "classes": 3}
    model = noise(ViT(ViTConfig(**shape | changes)))
    usual = Preprocess(size=model.config.size, resize=model.config.size, mean=HALF, std=HALF)
    model.card = Card(name="mine", preprocess=preprocess or usual)
    return model


@pytest.mark.parametrize("to", ["timm", "torchvision", "google"])
def test_convert_refuses_an_epsilon_that_the_library_cannot_hold(tmp_path, to):
    with pytest.raises(ValueError, match="cannot hold this model: .*norm_eps"):
        convert(model_of(norm_eps=1e-4), tmp_path / "out", to=to)


@torch.no_grad()
@pytest.mark.parametrize("to", ["timm", "google", "huggingface"])
def test_convert_keeps_a_size_that_is_not_square(tmp_path, to):
    model = model_of(image_size=(24, 48))
    out = tmp_path / {"google": "out.npz", "timm": "out.safetensors"}.get(to, "out")
    convert(model, out, to=to)
    x = torch.randn(2, 3, 24, 48)
    assert_same(load(out)(x), model(x))


def test_convert_refuses_a_size_that_torchvision_cannot_hold(tmp_path):
    with pytest.raises(ValueError, match="its images and patches are square"):
        convert(model_of(image_size=(24, 48)), tmp_path / "out", to="torchvision")


@pytest.mark.parametrize("to", ["timm", "huggingface"])
def test_convert_refuses_a_cover_crop_that_would_become_a_squash(tmp_path, to):
    cover = Preprocess(size=(32, 32), resize=(40, 40), mean=HALF, std=HALF, cover=True)
    with pytest.raises(ValueError, match="cannot hold the preprocessing cover 40×40"):
        convert(model_of(cover), tmp_path, to=to)


@pytest.mark.parametrize(("to", "rounding"), [("timm", "down"), ("huggingface", "even")])
def test_convert_keeps_where_half_a_pixel_goes(tmp_path, to, rounding):
    preprocess = Preprocess(size=(32, 32), resize=36, mean=HALF, std=HALF, crop_rounding=rounding)
    convert(model_of(preprocess), tmp_path, to=to)
    assert load(tmp_path).card.preprocess == preprocess


@pytest.mark.slow
@torch.no_grad()
def test_timm_builds_a_converted_model_at_the_size_that_it_was_trained_with(tmp_path):
    from vitreous.models.variants import variant

    model = noise(ViT(variant("vit_tiny_patch16_384", classes=3)))
    convert(model, tmp_path, to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = torch.randn(1, 3, 384, 384)
    assert_same(model(x), theirs(x))


# --- preprocessing of bare files ----------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 4, 5])
@torch.no_grad()
def test_a_bare_file_of_other_channels(tmp_path, channels):
    theirs = noise(timm.create_model("vit_base_patch16_224", num_classes=7, in_chans=channels, **TIMM))
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    ours = load(tmp_path / "mine.pth", assume={"heads": 4})
    x = torch.randn(2, channels, 32, 32)
    assert_same(ours(x), theirs(x))
    assert len(ours.card.preprocess.mean) == channels
    image = Image.fromarray(np.zeros((40, 40, 3), np.uint8))
    if channels == 1:
        assert ours.card.preprocess(image).shape == (1, 32, 32)
    else:
        with pytest.raises(ValueError, match=f"takes {channels} channels and images have 1 or 3"):
            ours.card.preprocess(image)


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("mine.pth", "IMAGENET1K_V1"),
        ("vit_b_16-c867db91.pth", "IMAGENET1K_V1"),
        ("vit_b_16_lc_swag-4e70ced5.pth", "IMAGENET1K_SWAG_LINEAR_V1"),
    ],
)
def test_a_bare_file_of_torchvision_has_torchvisions_resize(tmp_path, name, member):
    state = VisionTransformer(224, 56, 1, 4, 48, 96, num_classes=7).state_dict()
    torch.save(state, tmp_path / name)
    ours = load(tmp_path / name, assume={"heads": 4}).card.preprocess
    theirs = ViT_B_16_Weights[member].transforms()
    assert ([ours.resize], ours.interpolation) == (theirs.resize_size, theirs.interpolation.value)


def test_swags_size_has_swags_resize(tmp_path):
    torch.save(VisionTransformer(384, 96, 1, 4, 48, 96, num_classes=7).state_dict(), tmp_path / "mine.pth")
    ours = load(tmp_path / "mine.pth", assume={"heads": 4}).card.preprocess
    assert (ours.resize, ours.interpolation) == (384, "bicubic")


# --- crashes and misleading lines ---------------------------------------------------------------------------


def test_eomt_is_named_as_unsupported(tmp_path):
    small = {key: value for key, value in SMALL_CLASSIFIER.items() if key != "num_labels"}
    config = transformers.EomtConfig(**small, num_queries=3, num_blocks=1, num_upscale_blocks=1)
    transformers.EomtForUniversalSegmentation(config).save_pretrained(tmp_path)
    refused(tmp_path, "the family EoMT .* is not supported")
    (tmp_path / "config.json").unlink()
    refused(tmp_path, "the family EoMT .* is not supported")


def test_the_question_about_heads_suggests_no_number(tmp_path):
    state = timm.create_model(
        "vit_base_patch16_224", **TIMM | {"embed_dim": 1664, "num_heads": 16, "depth": 1, "mlp_ratio": 0.25}
    ).state_dict()
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match="--assume heads=N") as error:
        load(tmp_path / "mine.pth")
    assert "26" not in str(error.value).removeprefix(str(tmp_path))


def test_a_rotary_model_is_not_answered_with_position_none(tmp_path):
    theirs = timm.create_model("vit_small_patch16_rope_224", img_size=32, patch_size=8, depth=2)
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    with pytest.raises(ValueError, match="if they are rotary, say which model it is") as error:
        load(tmp_path / "mine.pth")
    assert "none" not in str(error.value)


def test_an_unsupported_name_is_not_answered_with_another_name():
    with pytest.raises(
        ValueError, match="'swin_tiny_patch4_window7_224' is a Swin Transformer, which is not supported"
    ):
        parse("swin_tiny_patch4_window7_224")


# --- what the user says -------------------------------------------------------------------------------------


@torch.no_grad()
def test_what_was_assumed_is_reported(tmp_path):
    theirs = timm_folder(tmp_path, "vit_base_patch16_clip_224")
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    ours = load(tmp_path / "mine.pth", assume={"heads": 4, "activation": "gelu"})
    assert_same(ours(X), theirs(X))
    assert ours.card.report.assumed["heads"] == "4 (as you said)"
    overruled = load(tmp_path, assume={"heads": 6})
    assert overruled.card.report.assumed["heads"] == "6 (as you said; config.json says 4)"
    assert overruled.config == replace(load(tmp_path).config, heads=6)


@pytest.mark.slow
def test_an_architecture_can_be_assumed(tmp_path):
    torch.save(timm.create_model("deit3_small_patch16_224").state_dict(), tmp_path / "mine.pth")
    refused(tmp_path / "mine.pth", "no file states rope")
    ours = load(tmp_path / "mine.pth", assume={"architecture": "deit3_small_patch16_224"})
    assert ours.card.report.assumed["heads"] == "6 (as deit3_small_patch16_224 has)"


def test_our_own_preprocessing_of_another_size_is_refused(tmp_path):
    save(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=1, heads=4, classes=7)), tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    content["vitreous"]["preprocess"]["size"] = [64, 64]
    (tmp_path / "config.json").write_text(json.dumps(content))
    refused(tmp_path, r"takes images of \(32, 32\), its preprocessing makes \(64, 64\)")


def test_our_own_folder_without_preprocessing_is_refused(tmp_path):
    save(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=1, heads=4, classes=7)), tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    del content["vitreous"]["preprocess"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="states no preprocessing"):
        load(tmp_path)


# --- wrappers that training scripts put around the weights ----------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: {f"timm_model.{key}": value for key, value in model.state_dict().items()},
        lambda model: {f"_forward_module.{key}": value for key, value in model.state_dict().items()},
        lambda model: {f"_forward_module.model.{key}": value for key, value in model.state_dict().items()},
        lambda model: torch.optim.swa_utils.AveragedModel(model).state_dict(),
        lambda model: {"state_dict": torch.optim.swa_utils.AveragedModel(torch.nn.DataParallel(model)).state_dict()},
        lambda model: {f"visual.trunk.{key}": value for key, value in model.state_dict().items() if "head" not in key},
    ],
    ids=["timm_model", "fabric", "fabric-model", "averaged", "averaged-parallel", "open_clip"],
)
def test_wrapped_weights_give_the_models_own_numbers(tmp_path, wrap, request):
    theirs = noise(timm.create_model("vit_base_patch16_224", num_classes=7, **TIMM))
    torch.save(wrap(theirs), tmp_path / "mine.pth")
    headless = {"classes": 0} if "open_clip" in request.node.name else {}
    ours = load(tmp_path / "mine.pth", assume={"heads": 4} | headless)
    assert_same(ours.forward_features(X), theirs.forward_features(X))


@torch.no_grad()
def test_transformers_ijepa_with_its_prefix(tmp_path):
    theirs = huggingface_folder(tmp_path, "IJepaForImageClassification")
    assert any(key.startswith("ijepa.") for key in load_file(tmp_path / "model.safetensors"))
    assert_same(load(tmp_path)(X), theirs(X).logits)


# --- what training scripts write beside the weights -----------------------------------------------------------


def trained(path, arch="vit_tiny_patch16_224", **options):
    """A noisy ViT-Ti of timm's and the checkpoint that timm's training script writes of it."""
    arguments = options.get("model_kwargs", {})
    theirs = noise(timm.create_model("vit_tiny_patch16_224", num_classes=7, img_size=32, **arguments))
    torch.save({"arch": arch, "args": argparse.Namespace(**options), "state_dict": theirs.state_dict()}, path)
    return theirs


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "timm/vit_tiny_patch16_224.augreg_in21k", "num_classes": 7},
        {"model_kwargs": {"act_layer": "relu"}},
        {"model_kwargs": {"global_pool": "avg"}},
    ],
)
def test_the_statement_of_timms_training_script_is_read(tmp_path, options):
    theirs = trained(tmp_path / "last.pth.tar", **options)
    ours = load(tmp_path / "last.pth.tar")
    assert_same(ours(X), theirs(X))
    assert ours.card.report.assumed["heads"] == "3 (as its arch vit_tiny_patch16_224 has)"
    assert ours.card.preprocess.mean == HALF  # as timm's vit_* models have


def test_timms_training_script_states_the_preprocessing(tmp_path):
    trained(tmp_path / "last.pth.tar", mean=[0.1, 0.2, 0.3], std=None, crop_pct=0.5, interpolation="")
    preprocess = load(tmp_path / "last.pth.tar").card.preprocess
    assert (preprocess.mean, preprocess.std, preprocess.resize) == ((0.1, 0.2, 0.3), HALF, 64)


@pytest.mark.parametrize(
    ("name", "arch", "options", "message"),
    [
        ("a.pth", "vit_small_patch16_224", {}, "its arch vit_small_patch16_224 says .*, but its tensors say"),
        ("a.pth", "vit_tiny_patch16_224", {"num_classes": 8}, "says classes=8, but its tensors say classes=7"),
        ("a.pth", "vit_tiny_patch16_224", {"model_kwargs": {"depth": 12, "swish": 1}}, "swish=1 is not supported"),
        ("a.pth", "mine", {"model_kwargs": {"act_layer": "relu"}}, "its arch is 'mine', .*--assume architecture=NAME"),
        (
            "deit_tiny_patch16_224.pth",
            "vit_tiny_patch16_224",
            {},
            "its name is deit_tiny.*, but it was trained as vit_",
        ),
    ],
)
def test_a_training_script_that_contradicts_the_file(tmp_path, name, arch, options, message):
    theirs = noise(timm.create_model("vit_tiny_patch16_224", num_classes=7, img_size=32))
    content = {"arch": arch, "args": argparse.Namespace(**options), "state_dict": theirs.state_dict()}
    torch.save(content, tmp_path / name)
    refused(tmp_path / name, message)


def test_a_training_script_that_contradicts_the_config(tmp_path):
    theirs = timm_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"arch": "deit3_base_patch16_224", "state_dict": theirs.state_dict()}, tmp_path / "last.pth")
    refused(
        tmp_path, "config.json says architecture=vit_base_patch16_224, but it was trained as deit3_base_patch16_224"
    )


def test_a_resnet_of_another_kind_with_a_resnets_tensors(tmp_path):
    state = {"arch": "resnetaa18", "state_dict": torchvision.models.resnet18().state_dict()}
    torch.save(state, tmp_path / "mine.pth")
    refused(tmp_path / "mine.pth", "its training script says resnetaa18, and its tensors are those of a plain resnet18")
    torch.save(state | {"arch": "resnet18"}, tmp_path / "mine.pth")
    assert load(tmp_path / "mine.pth").config.depth == 18


# --- heads in containers of their own -------------------------------------------------------------------------


@torch.no_grad()
def test_a_head_beside_the_backbone_is_the_models(tmp_path):
    theirs = noise(timm.create_model("vit_base_patch16_224", num_classes=7, **TIMM))
    state = theirs.state_dict()
    head = {key.removeprefix("head."): state.pop(key) for key in ("head.weight", "head.bias")}
    torch.save({"model": state, "head": head, "epoch": 3}, tmp_path / "mine.pth")
    assert_same(load(tmp_path / "mine.pth", assume={"heads": 4})(X), theirs(X))
    named = {f"fc.{key}": value for key, value in head.items()}
    for wrapped in ({"encoder": state, "fc": head}, {"state_dict": state, **named}, state | {"fc": head}):
        torch.save(wrapped, tmp_path / "mine.pth")
        refused(
            tmp_path / "mine.pth", "it has tensors that this model does not: fc.weight, fc.bias", assume={"heads": 4}
        )


# --- what the outputs mean ------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("kind", [None, "single_label_classification", "multi_label_classification"])
def test_transformers_probabilities_are_ours(tmp_path, kind):
    theirs = huggingface_folder(tmp_path, problem_type=kind)
    ours = load(tmp_path)
    logits = ours(X)
    assert_same(logits, theirs(X).logits)
    expected = logits.sigmoid() if kind == "multi_label_classification" else logits.softmax(dim=-1)
    pipeline = transformers.pipeline(
        "image-classification", model=theirs, image_processor=transformers.ViTImageProcessor()
    )
    answers = pipeline.postprocess({"logits": logits[:1]}, top_k=7)
    assert sorted(answer["score"] for answer in answers) == pytest.approx(sorted(expected[0].tolist()))
    found = top_classes(logits[0], ours.card.label, 7, independent=ours.card.independent)
    assert sorted(each.probability for each in found) == pytest.approx(sorted(expected[0].tolist()))


@pytest.mark.parametrize(
    ("options", "task"), [({"problem_type": "regression"}, "regress"), ({"num_labels": 1}, "multilabel")]
)
def test_what_transformers_outputs_mean_is_on_the_card(tmp_path, options, task):
    huggingface_folder(tmp_path, **options)
    assert load(tmp_path).card.task == task
    change(tmp_path, problem_type="ranking")
    refused(tmp_path, "problem_type='ranking'")
