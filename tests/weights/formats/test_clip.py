"""CLIP's vision towers as OpenAI, OpenCLIP and transformers publish them: the original's outputs."""

import pytest
import timm
import torch
import transformers
from originals import SMALL_CLASSIFIER
from timm.models.vision_transformer import checkpoint_filter_fn

from conftest import assert_same, noise
from vitreous.weights.load import load

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4}


X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("prefix", ["visual.", "module.visual."])
@torch.no_grad()
def test_openais_clip_gives_timms_embedding(prefix, tmp_path):
    width = 48
    state = {
        "class_embedding": torch.randn(width),
        "positional_embedding": torch.randn(17, width),
        "conv1.weight": torch.randn(width, 3, 8, 8) * 0.1,
        "ln_pre.weight": torch.randn(width),
        "ln_pre.bias": torch.randn(width),
        "ln_post.weight": torch.randn(width),
        "ln_post.bias": torch.randn(width),
        "proj": torch.randn(width, 20),
    }
    for n in range(3):
        shapes = {
            "ln_1.weight": (width,),
            "ln_1.bias": (width,),
            "attn.in_proj_weight": (3 * width, width),
            "attn.in_proj_bias": (3 * width,),
            "attn.out_proj.weight": (width, width),
            "attn.out_proj.bias": (width,),
            "ln_2.weight": (width,),
            "ln_2.bias": (width,),
            "mlp.c_fc.weight": (192, width),
            "mlp.c_fc.bias": (192,),
            "mlp.c_proj.weight": (width, 192),
            "mlp.c_proj.bias": (width,),
        }
        state |= {
            f"transformer.resblocks.{n}.{k}": torch.randn(s) * (0.5 if len(s) == 1 else 0.15) for k, s in shapes.items()
        }
    whole = {prefix + key: value for key, value in state.items()}
    whole |= {f"{prefix.removesuffix('visual.')}token_embedding.weight": torch.zeros(9, 4)}
    torch.save(whole, tmp_path / "clip.pt")
    theirs = timm.create_model("vit_base_patch16_clip_quickgelu_224", **SMALL, num_classes=20).eval()
    theirs.load_state_dict(checkpoint_filter_fn(dict(whole), theirs))
    with pytest.raises(ValueError, match="quick_gelu or gelu.*--assume activation=NAME"):  # OpenCLIP's have gelu
        load(tmp_path / "clip.pt", assume={"heads": 4})
    whole |= {f"{prefix.removesuffix('visual.')}input_resolution": torch.tensor(32)}  # in OpenAI's own archives
    torch.save(whole, tmp_path / "clip.pt")
    ours = load(tmp_path / "clip.pt", assume={"heads": 4})
    assert_same(ours(X), theirs(X))
    assert ours.card.head == "projection"
    assert ours.config.activation == "quick_gelu"


@torch.no_grad()
def test_a_clip_classifier_averages_tokens_before_the_norm(tmp_path):
    config = transformers.CLIPConfig(vision_config=SMALL_CLASSIFIER, num_labels=7)
    theirs = noise(transformers.CLIPForImageClassification(config))
    theirs.save_pretrained(tmp_path)
    x = torch.randn(2, 3, 32, 32)
    assert_same(load(tmp_path)(x), theirs(x).logits)


@torch.no_grad()
def test_a_complete_clip_gives_its_vision_tower(tmp_path):
    text = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 99,
    }
    config = transformers.CLIPConfig(vision_config=SMALL_CLASSIFIER, text_config=text, projection_dim=24)
    theirs = noise(transformers.CLIPModel(config))
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    x = torch.randn(2, 3, 32, 32)
    image = theirs.get_image_features(pixel_values=x)
    assert_same(ours(x), image if isinstance(image, torch.Tensor) else image.pooler_output)
    assert ours.card.head == "projection"
    assert any(key.startswith("text_model") for key in ours.card.report.ignored)
