"""Text towers give the features, and with the images the logits, of transformers and OpenCLIP."""

import json
import shutil

import open_clip
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from two_towers import SENTENCES, X, write_clip, write_open_clip, write_siglip

from vitreous.models.text import with_sentences
from vitreous.weights.load import load
from vitreous.weights.load_text import load_text


def both(folder, **options):
    """Our text tower, and our vision tower with the sentences as classes."""
    model = load(folder, **options)
    tower = load_text(model)
    features = tower(tower.tokenizer(SENTENCES))
    return tower, features, with_sentences(model, features, tower.logit_scale, tower.logit_bias)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """A folder with transformers' CLIP."""
    folder = tmp_path_factory.mktemp("clip")
    write_clip(folder, tokenizer="bpe")
    return folder


def close(ours, theirs):
    assert (ours - theirs).abs().max() <= 1e-4, (ours - theirs).abs().max()
    assert theirs.std() > 0.05  # noise, not constants


@pytest.mark.slow
@pytest.mark.parametrize("text", [{}, {"eos_token_id": 2}, {"hidden_act": "gelu", "layer_norm_eps": 1e-3}])
@torch.no_grad()
def test_transformers_clip_gives_its_features_and_logits(text, tmp_path):
    theirs = write_clip(tmp_path, **text)
    tower, features, worded = both(tmp_path)
    tokens = transformers.CLIPTokenizer.from_pretrained(tmp_path)(
        list(SENTENCES), padding="max_length", max_length=77, truncation=True, return_tensors="pt"
    )
    assert torch.equal(tower.tokenizer(SENTENCES), tokens["input_ids"])
    found = theirs(**tokens, pixel_values=X)
    close(features, theirs.get_text_features(**tokens).pooler_output)
    close(worded(X), found.logits_per_image)


@torch.no_grad()
def test_transformers_siglip_2_gives_its_text_features(tmp_path):
    theirs = write_siglip(tmp_path, second=True)
    (tmp_path / "preprocessor_config.json").unlink()  # of any shape, which ours crop
    tower, features, _ = both(tmp_path)
    close(features, theirs.get_text_features(input_ids=tower.tokenizer(SENTENCES)).pooler_output)


@torch.no_grad()
def test_transformers_siglip_gives_its_features_and_logits_with_padding(tmp_path):
    folder = tmp_path / "siglip2-base-patch16-224"  # a name of timm's that it does not support; the config outweighs it
    folder.mkdir()
    theirs = write_siglip(folder)
    tower, features, worded = both(folder)
    tokens = tower.tokenizer(SENTENCES)
    found = theirs(input_ids=tokens, pixel_values=X)
    close(features, theirs.get_text_features(input_ids=tokens).pooler_output)
    close(worded(X), found.logits_per_image)
    assert tokens[3].tolist() == [1] + [0] * 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "model", "options"),
    [
        ({}, {}, {}),
        ({}, {"quick_gelu": True, "init_logit_bias": -10}, {"pickled": True}),
        ({"pool_type": "eos", "eos_id": 49407, "norm_kwargs": {"eps": 1e-3}}, {"nonscalar_logit_scale": True}, {}),
        (
            {"no_causal_mask": True, "proj_bias": True, "pool_type": "last", "act_kwargs": {"approximate": "tanh"}},
            {"custom_text": True, "init_logit_bias": -10},
            {},
        ),
    ],
)
@torch.no_grad()
def test_open_clip_gives_its_features_and_logits(text, model, options, tmp_path):
    theirs = write_open_clip(tmp_path, text, **options, **model)
    tower, features, worded = both(tmp_path)
    tokens = open_clip.tokenizer.SimpleTokenizer()(list(SENTENCES))
    assert torch.equal(tower.tokenizer(SENTENCES), tokens)
    close(features, theirs.encode_text(tokens))
    close(worded(X), theirs.get_logits(X, tokens)[0])


@pytest.mark.slow
@torch.no_grad()
def test_a_bare_openai_file_reads_its_text_tower_and_says_what_it_assumed(tmp_path):
    theirs = write_open_clip(tmp_path, {"width": 64, "heads": 1}, config=False, quick_gelu=True)
    (tmp_path / "open_clip_model.safetensors").rename(tmp_path / "clip.safetensors")
    assumed = {"activation": "quick_gelu", "heads": 2, "depth": 2}
    _, features, _ = both(tmp_path / "clip.safetensors", assume=assumed)
    close(features, theirs.encode_text(open_clip.tokenizer.SimpleTokenizer()(list(SENTENCES))))
    model = load(tmp_path / "clip.safetensors", assume=assumed)
    load_text(model)
    assert "1 heads and the activation quick_gelu" in model.card.report.assumed["text tower"]


def test_a_model_without_a_text_tower_says_so():
    with pytest.raises(ValueError, match="packaged:cifar10 has no text tower"):
        load_text(load("packaged:cifar10"))


def test_a_folder_without_its_tokenizer_says_which_file_to_give(tmp_path, monkeypatch):
    write_open_clip(tmp_path, tokenizer=None)
    monkeypatch.setattr("vitreous.weights.tokenizer._installed_vocabulary", lambda: None)
    with pytest.raises(ValueError, match=r"no tokenizer: put its tokenizer.json.*bpe_simple_vocab"):
        load_text(load(tmp_path))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("mystery", 1, "text_config has the field mystery"),
        ("num_hidden_layers", 3, "says depth=3 of the text tower, its tensors say 2"),
        ("hidden_act", "mish", "activation 'mish' of the text tower"),
        ("eos_token_id", 7, "adds no token 7"),
        ("vocab_size", 100, "says vocabulary=100"),
        ("num_attention_heads", 5, "cannot be split over 5 heads"),
        ("layer_norm_eps", "small", "layer_norm_eps='small'"),
    ],
)
def test_a_field_of_text_config_is_read_or_refused(field, value, reason, clip, tmp_path):
    shutil.copytree(clip, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"][field] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=reason):
        load_text(load(tmp_path))


@pytest.mark.parametrize(
    ("field", "value"), [("embed_cls", True), ("ls_init_value", 0.1), ("hf_model_name", "roberta-base"), ("mystery", 1)]
)
def test_a_field_of_text_cfg_that_changes_the_numbers_is_refused(field, value, tmp_path):
    write_open_clip(tmp_path)
    config = json.loads((tmp_path / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"][field] = value
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"text_cfg has the field {field}"):
        load_text(load(tmp_path))


@pytest.mark.parametrize("damage", ["missing", "extra", "shape"])
def test_a_damaged_text_tower_is_refused(damage, clip, tmp_path):
    shutil.copytree(clip, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    key = "text_model.encoder.layers.1.mlp.fc2.bias"
    if damage == "missing":
        del tensors[key]
    elif damage == "extra":
        tensors["text_model.mystery"] = torch.ones(2)
    else:
        tensors[key] = torch.ones(3)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    words = {"missing": "lacks blocks.1.mlp.fc2.bias", "extra": "text_model.mystery", "shape": "has the shape"}
    with pytest.raises(ValueError, match=words[damage]):
        load_text(load(tmp_path))
