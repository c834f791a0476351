"""transformers' BEiT, Data2Vec, AIMv2, I-JEPA, DPT, SigLIP, SigLIP 2 → loaded here → the same numbers, in any size."""

import pytest
import torch
import transformers
from originals import fill_with_noise, flat_patches, outputs_of_transformers
from safetensors.torch import save_file

from conftest import assert_same
from vitreous.weights.formats.huggingface_beit import read_beit_config
from vitreous.weights.formats.huggingface_dinov3 import read_dinov3_config
from vitreous.weights.formats.siglip import read_siglip_config
from vitreous.weights.load import load
from vitreous.weights.safety import CheckpointError

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SMALL = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": 32,
    "patch_size": 8,
}
BOTH = {"use_absolute_position_embeddings": True, "use_shared_relative_position_bias": True}
DPT = {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8] * 4}
DINO = {
    "model_type": "dinov2",
    **SMALL,
    "num_hidden_layers": 4,
    "out_indices": [1, 2, 3, 4],
    "reshape_hidden_states": False,
}
CASES = {
    "BeitModel": {"use_relative_position_bias": True},
    "BeitForImageClassification": BOTH | {"use_mean_pooling": False},
    "BeitForMaskedImageModeling": {"use_shared_relative_position_bias": True, "use_mask_token": True},
    "BeitBackbone": {"use_absolute_position_embeddings": True, "layer_scale_init_value": 0.0},
    "Data2VecVisionModel": {"use_relative_position_bias": True},
    "Data2VecVisionForImageClassification": BOTH,
    "Aimv2VisionModel": {},
    "IJepaModel": {},
    "IJepaForImageClassification": {},
    "DINOv3ViTModel": {"num_register_tokens": 2},
    "DPTModel": {},
    "DPTForDepthEstimation": DPT,
    "DPTForSemanticSegmentation": DPT | {"image_size": 48},
}


def noise(model):
    """Fill every tensor that is stored: rotary rates are not."""
    fill_with_noise(model.state_dict())
    return model.eval()


def build(name, **extra):
    owner = getattr(transformers, name)
    model = owner(owner.config_class(**SMALL | extra))
    return noise(model)


def same_as_transformers(ours, theirs, x):
    expected = outputs_of_transformers(theirs, x)
    assert_same(ours.forward_features(x)[:, -expected.shape[1] :] if expected.dim() == 3 else ours(x), expected)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_numbers_are_transformers(name, tmp_path):
    theirs = build(name, **CASES[name])
    theirs.save_pretrained(tmp_path)
    size = 48 if "Segmentation" in name else 32
    same_as_transformers(load(tmp_path), theirs, torch.randn(2, 3, size, size))


@pytest.mark.parametrize("name", [name for name in CASES if name[:4] in ("Beit", "Aimv", "Data")])
@torch.no_grad()
def test_keys_as_transformers_has_them_in_memory_are_read(name, tmp_path):
    theirs = build(name, **CASES[name])
    theirs.save_pretrained(tmp_path)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    same_as_transformers(load(tmp_path), theirs, torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize("size", [(48, 48), (40, 24)])
@pytest.mark.parametrize(
    "name", ["BeitModel", "BeitForImageClassification", "Data2VecVisionModel", "DINOv3ViTModel", "DPTModel"]
)
@torch.no_grad()
def test_another_size_is_resized_as_transformers_does(name, size, tmp_path):
    theirs = build(name, **CASES[name])
    theirs.save_pretrained(tmp_path)
    x = torch.randn(1, 3, *size)
    out = theirs(x)  # without interpolate_pos_encoding, which would smooth the bias a second time
    for key in ("logits", "pooler_output", "last_hidden_state"):
        if getattr(out, key, None) is not None:
            ours = load(tmp_path, image_size=size)
            return assert_same(ours.forward_features(x) if key == "last_hidden_state" else ours(x), getattr(out, key))
    raise AssertionError(out.keys())


@torch.no_grad()
def test_the_decoder_of_a_dpt_is_listed_as_ignored_also_in_a_bare_file(tmp_path):
    theirs = build("DPTForDepthEstimation", **DPT)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    ours = load(tmp_path / "model.safetensors", assume={"heads": 4, "depth": 4})
    same_as_transformers(ours, theirs, torch.randn(2, 3, 32, 32))
    decoder = [key for key in theirs.state_dict() if not key.startswith("dpt.")]
    assert sorted(ours.card.report.ignored) == sorted(decoder)
    save_file(
        {key: value for key, value in theirs.state_dict().items() if key in decoder}, tmp_path / "decoder.safetensors"
    )
    with pytest.raises(ValueError, match="DPT whose backbone is not its own plain ViT"):
        load(tmp_path / "decoder.safetensors")


@torch.no_grad()
def test_an_aimv2_with_its_text_tower_projects_its_pooled_tokens(tmp_path):
    config = transformers.Aimv2Config(vision_config=SMALL, text_config=SMALL | {"vocab_size": 30}, projection_dim=20)
    theirs = noise(transformers.Aimv2Model(config))
    theirs.save_pretrained(tmp_path)
    ours, x = load(tmp_path), torch.randn(2, 3, 32, 32)
    assert ours.card.head == "projection"
    same_as_transformers(ours, theirs, x)


@pytest.mark.parametrize("labels", [2, 7])
@torch.no_grad()
def test_a_siglip_classifier_averages_its_tokens(labels, tmp_path):
    config = transformers.SiglipConfig(vision_config=SMALL, num_labels=labels)
    theirs = noise(transformers.SiglipForImageClassification(config))
    theirs.save_pretrained(tmp_path)
    same_as_transformers(load(tmp_path), theirs, torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize("size", [(32, 32), (40, 24)])
@pytest.mark.parametrize("name", ["Siglip2VisionModel", "Siglip2ForImageClassification"])
@torch.no_grad()
def test_a_siglip2_is_exact_at_a_fixed_grid(name, size, tmp_path):
    fields = {key: value for key, value in SMALL.items() if key != "image_size"} | {"num_patches": 16}
    owner = getattr(transformers, name)
    vision = name == "Siglip2VisionModel"
    theirs = noise(owner(owner.config_class(**fields if vision else {"vision_config": fields, "num_labels": 5})))
    theirs.save_pretrained(tmp_path)
    x = torch.randn(2, 3, *size)
    out = theirs(**flat_patches(x, 8))
    ours = load(tmp_path, image_size=None if size == (32, 32) else size)
    assert_same(ours(x), out.pooler_output if vision else out.logits)


def test_a_siglip2_states_that_its_images_are_squashed(tmp_path):
    fields = {key: value for key, value in SMALL.items() if key != "image_size"} | {"num_patches": 16}
    transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**fields)).save_pretrained(tmp_path)
    transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=16).save_pretrained(tmp_path)
    card = load(tmp_path).card
    assert card.preprocess.size == (32, 32)
    assert "keeps the shape" in card.report.assumed["preprocessing"]


@pytest.mark.parametrize(
    ("name", "extra", "line"),
    [
        ("Aimv2VisionModel", {"is_native": True}, "images of any size is not supported"),
        ("Aimv2VisionModel", {"mlp_bias": True}, "qkv_bias and mlp_bias of two values"),
        ("Aimv2VisionModel", {"hidden_act": "gelu"}, "expected silu"),
        ("BeitModel", BOTH | {"use_relative_position_bias": True}, "both shared relative positions"),
        ("BeitModel", {"use_relative_position_bias": True, "image_size": (32, 48)}, "not square"),
        ("VideoMAEModel", {}, "VideoMAE is not supported"),
        ("YolosModel", {"image_size": [32, 32]}, "YOLOS .detection tokens run through all blocks. is not supported"),
        ("EomtForUniversalSegmentation", {}, "EoMT .queries join its last blocks. is not supported"),
        ("DPTModel", {"image_size": [32, 48]}, "not square"),
        ("DPTForDepthEstimation", DPT | {"backbone_config": DINO}, "another backbone than its own plain ViT"),
    ],
)
def test_what_would_not_be_exact_is_refused_by_name(name, extra, line, tmp_path):
    build(name, **extra).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=line) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_hub_folder_may_have_the_name_of_its_model(tmp_path):
    build("DINOv3ViTModel").save_pretrained(tmp_path / "dinov3-vits16-pretrain-lvd1689m")
    assert load(tmp_path / "dinov3-vits16-pretrain-lvd1689m").config.rope == "dinov3"


def test_a_tensor_under_two_prefixes_is_refused(tmp_path):
    theirs = build("BeitForImageClassification", **BOTH)
    theirs.save_pretrained(tmp_path)
    twice = theirs.state_dict() | {"embeddings.cls_token": torch.zeros(1, 1, 48)}
    save_file(twice, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="twice"):
        load(tmp_path)


BARE = {  # sizes that are well known, and what has to be said
    "DINOv3ViTModel": ({"hidden_size": 384, "num_attention_heads": 6, "num_register_tokens": 4}, {"image_size": 32}),
    "SiglipVisionModel": ({"hidden_size": 768}, {}),
    "BeitModel": ({"hidden_size": 768, "use_relative_position_bias": True}, {}),
    "Dinov2Model": ({"hidden_size": 384, "num_attention_heads": 6}, {}),
    "ViTModel": ({"hidden_size": 192, "num_attention_heads": 3}, {}),
    "CLIPVisionModel": ({"hidden_size": 768, "patch_size": 8}, {"activation": "quick_gelu"}),
    "IJepaModel": ({"hidden_size": 192, "num_attention_heads": 3}, {"norm_eps": 1e-12, "heads": 3}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BARE)
@torch.no_grad()
def test_a_bare_file_asks_for_what_no_tensor_shows(name, tmp_path):
    fields, said = BARE[name]
    sizes = {"image_size": 32, "patch_size": 8, "intermediate_size": 4 * fields["hidden_size"]}
    owner = getattr(transformers, name)
    theirs = noise(owner(owner.config_class(**sizes | fields)))
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    path = tmp_path / "model.safetensors"
    if said:
        with pytest.raises(ValueError, match="pass --assume"):
            load(path)
    ours = load(path, assume=said)
    assert ours.card.report.assumed
    same_as_transformers(ours, theirs, torch.randn(1, 3, *ours.config.size))


@pytest.mark.parametrize(
    ("read", "config", "field"),
    [
        (read_dinov3_config, {"model_type": "dinov3_vit", "pos_embed_jitter": 1}, "pos_embed_jitter"),
        (read_siglip_config, {"model_type": "siglip", "initializer_factor": None}, "initializer_factor"),
        (read_siglip_config, {"model_type": "siglip", "text_config": {"num_hidden_layers": "12"}}, "num_hidden_layers"),
        (read_siglip_config, {"model_type": "siglip", "text_config": {"eos_token_id": "1"}}, "eos_token_id"),
        (read_beit_config, {"model_type": "beit", "vocab_size": None}, "vocab_size"),
    ],
)
def test_a_field_of_a_type_that_transformers_refuses_is_refused(read, config, field):
    with pytest.raises(CheckpointError, match=field):
        read(config)
