"""Tiny two-tower models on disk: transformers' CLIP and SigLIP, OpenCLIP's and OpenAI's, with noise in every tensor."""

import gzip
import json
from functools import cache
from pathlib import Path

import open_clip
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from conftest import noise

VOCABULARY = Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz"
SENTENCES = ("a photo of a cat", "两只猫 🐈 on a sofa", "word " * 200, "")
X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
VISION = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 3}
OPEN_CLIP_VISION = {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8}
OPEN_CLIP_TEXT = {"width": 48, "heads": 3, "layers": 2}
PROCESSOR = {"image_processor_type": "CLIPImageProcessor", "size": {"height": 32, "width": 32}, "do_center_crop": False}
PROCESSOR |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3, "do_rescale": True}


def tempered(model):
    """Noise in every tensor; a scale of 5 to 10, as trained models have rather more than less."""
    masks = {name: buffer.clone() for name, buffer in model.named_buffers()}
    noise(model)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(masks[name])
        model.logit_scale.fill_(2.0)
        if getattr(model, "logit_bias", None) is not None:
            model.logit_bias.fill_(-3.0)
    return model


@cache
def clip_files():
    """CLIP's vocabulary and merges as `vocab.json` and `merges.txt` hold them."""
    merges = gzip.decompress(VOCABULARY.read_bytes()).decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    vocabulary = open_clip.tokenizer.SimpleTokenizer().encoder
    ends = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    return {ends.get(token, token): i for token, i in vocabulary.items()}, merges


def write_clip_tokenizer(folder, kind="tokenizer.json"):
    """Write CLIP's tokenizer as transformers does, as its two older files, or as OpenAI's package holds it."""
    vocabulary, merges = clip_files()
    if kind == "bpe":
        (folder / VOCABULARY.name).write_bytes(VOCABULARY.read_bytes())
    elif kind == "vocab.json":
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    else:
        theirs = transformers.CLIPTokenizer(vocab=vocabulary, merges=[tuple(line.split()) for line in merges])
        theirs.save_pretrained(folder)


def write_clip(folder, tokenizer="tokenizer.json", **text):
    """A CLIP of transformers: its folder, and the model."""
    config = transformers.CLIPConfig(
        text_config=TEXT | text,
        vision_config=VISION | {"image_size": 32, "patch_size": 8},
        projection_dim=20,
    )
    theirs = tempered(transformers.CLIPModel(config))
    theirs.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    write_clip_tokenizer(folder, tokenizer)
    return theirs


def train_unigram(words):
    """A SentencePiece-style tokenizer of `</s>`, `<unk>` and pieces of these words."""
    encoder = Tokenizer(models.Unigram())
    encoder.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    encoder.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=90, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    encoder.train_from_iterator(words, trainer)
    encoder.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return encoder


CORPUS = ("a photo of a cat", "a red circle on a table", "the bell tower of a church", "two dogs and a blue square") * 5


def write_siglip(folder, second=False):
    """A SigLIP of transformers, or a SigLIP 2: its folder, and the model."""
    text = VISION | {"vocab_size": 100, "max_position_embeddings": 16, "projection_size": 64}
    if second:
        config = transformers.Siglip2Config(
            text_config=text, vision_config=VISION | {"num_patches": 16, "patch_size": 8}
        )
        theirs = tempered(transformers.Siglip2Model(config))
    else:
        config = transformers.SiglipConfig(text_config=text, vision_config=VISION | {"image_size": 32, "patch_size": 8})
        theirs = tempered(transformers.SiglipModel(config))
    theirs.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps(PROCESSOR | {"image_processor_type": "SiglipImageProcessor"})
    )
    train_unigram(CORPUS).save(str(folder / "tokenizer.json"))
    stated = {"tokenizer_class": "GemmaTokenizer", "pad_token": "<pad>", "eos_token": "</s>", "padding_side": "right"}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    return theirs


def write_open_clip(folder, text=None, tokenizer="bpe", config=True, pickled=False, **model):
    """An OpenCLIP of its own two towers: its folder, and the model."""
    settings = {"embed_dim": 20, "vision_cfg": OPEN_CLIP_VISION, "text_cfg": OPEN_CLIP_TEXT | (text or {})}
    settings |= {"quick_gelu": False} | model
    custom = settings.pop("custom_text", False)
    kind = open_clip.model.CustomTextCLIP if custom else open_clip.model.CLIP
    theirs = tempered(kind(**settings))
    if custom:
        settings["custom_text"] = True
    if config:
        stated = {"model_cfg": settings, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
        (folder / "open_clip_config.json").write_text(json.dumps(stated))
    tensors = {key: value.contiguous() for key, value in theirs.state_dict().items()}
    if pickled:
        torch.save(tensors, folder / "open_clip_pytorch_model.bin")
    else:
        save_file(tensors, folder / "open_clip_model.safetensors")
    if tokenizer:
        write_clip_tokenizer(folder, tokenizer)
    return theirs
