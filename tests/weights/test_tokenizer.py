"""Tokens equal those of OpenCLIP and transformers, with CLIP's real vocabulary and a SentencePiece model made here."""

import io
import json

import open_clip
import pytest
import sentencepiece
import torch
import transformers
from two_towers import CORPUS, VOCABULARY, write_clip_tokenizer

from vitreous.models.text import TextConfig
from vitreous.weights.fetch import CheckpointFiles
from vitreous.weights.safety import CheckpointError
from vitreous.weights.sentencepiece import read_sentencepiece
from vitreous.weights.tokenizer import Tokenizer, read_clip_vocabulary, read_tokenizer

HARD = (
    "a photo of a cat",
    "😀 naïve café — don't, 🎉!",
    "一只猫坐在桌子上",
    "İstanbul ß ΣΑΣ 123",
    "tabs\tand\n\nlines  ",
    "<script>alert('x')</script>",
    "several words " * 100,
    "",
)
CLIP = TextConfig(width=8, depth=1, heads=1)


def read(folder, sidecar, config=CLIP):
    def beside(name):
        return folder / name if (folder / name).is_file() else None

    return read_tokenizer(CheckpointFiles("x", "folder", (folder / "x",), beside=beside), sidecar, config)


@pytest.mark.slow
def test_the_vocabulary_inside_open_clip_gives_its_tokens(tmp_path):
    write_clip_tokenizer(tmp_path, "bpe")
    texts = [*HARD, "Tom &amp; Jerry", "x &amp;lt; y"]
    ours = read(tmp_path, {"model_cfg": {"text_cfg": {}}})(texts)
    assert torch.equal(ours, open_clip.tokenizer.SimpleTokenizer()(texts))
    assert (ours != 0).sum(dim=1).max() == 77


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tokenizer.json", "vocab.json"])
def test_transformers_files_give_its_tokens(kind, tmp_path):
    write_clip_tokenizer(tmp_path, kind)
    if kind == "vocab.json":
        (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<|endoftext|>"}')
    theirs = transformers.CLIPTokenizer.from_pretrained(tmp_path)
    wanted = theirs(list(HARD), padding="max_length", max_length=77, truncation=True, return_tensors="pt").input_ids
    assert torch.equal(read(tmp_path, {"model_type": "clip"})(HARD), wanted)


@pytest.fixture(scope="module")
def spiece(tmp_path_factory):
    """A SentencePiece model of the kind that SigLIP has."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=file,
        vocab_size=90,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    path = tmp_path_factory.mktemp("spiece") / "spiece.model"
    path.write_bytes(file.getvalue())
    return path


@pytest.mark.parametrize("text", [*HARD, "A Photo.", "two  dogs ", "ﬁ ½ №", "▁under"])
def test_a_sentencepiece_model_gives_the_librarys_pieces(text, spiece):
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(spiece))
    assert read_sentencepiece(spiece.read_bytes()).encode(text).ids == [*theirs.encode(text), 1]


def test_siglips_cleaning_is_transformers(spiece):
    stated = {"pad_token": "</s>", "eos_token": "</s>", "tokenizer_class": "SiglipTokenizer"}
    (spiece.parent / "tokenizer_config.json").write_text(json.dumps(stated))
    texts = ["A Photo of a cat!", "two-dogs, (blue) square", "under_score", "", "the bell tower " * 20]
    ours = read(spiece.parent, {"model_type": "siglip"}, TextConfig(100, 16, 8, 1, 1, causal=False, pool="last"))
    theirs = transformers.SiglipTokenizer(str(spiece))
    wanted = theirs(texts, padding="max_length", max_length=16, truncation=True, return_tensors="pt").input_ids
    assert torch.equal(ours(texts), wanted)


def test_open_clips_canonical_cleaning_is_its_own():
    encoder = read_clip_vocabulary(VOCABULARY)
    texts = ["A red_circle, &amp; a (blue) SQUARE!", "  two   dogs\n"]
    ours = Tokenizer(encoder, 77, 0, "open-clip canonicalize")(texts)
    assert torch.equal(ours, open_clip.tokenizer.SimpleTokenizer(clean="canonicalize")(texts))


def test_padding_may_stand_on_the_left():
    encoder = read_clip_vocabulary(VOCABULARY)
    right, left = (Tokenizer(encoder, 8, 0, left=side)(["a cat"])[0].tolist() for side in (False, True))
    assert right[:4] == left[4:]
    assert left[:4] == right[4:] == [0] * 4


def test_the_count_is_that_of_the_uncut_sentence():
    assert Tokenizer(read_clip_vocabulary(VOCABULARY), 77, 0).count("cat " * 200) == 202


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", b"{", "cannot be read"),
        ("tokenizer.json", b"\xff\xfe", "cannot be read"),
        ("spiece.model", b"\x0a\xff\xff\xff\xff\x0f", "damaged"),
        ("spiece.model", b"", "lacks an unknown piece"),
        (VOCABULARY.name, b"no gzip", "cannot be read"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(name, content, reason, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=reason) as raised:
        read(tmp_path, {"model_type": "clip"})
    assert "\n" not in str(raised.value)


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    write_clip_tokenizer(tmp_path, "bpe")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
    with pytest.raises(CheckpointError, match="it is not CLIP's"):
        read(tmp_path, {"model_type": "clip"})
    (tmp_path / "vocab.json").unlink()
    few = TextConfig(vocabulary=49408, width=8, depth=1, heads=1, pool="end", end_token=5)
    with pytest.raises(CheckpointError, match="adds no token 5"):
        read(tmp_path, {"model_type": "clip"}, few)


def test_siglips_padding_token_must_be_known(spiece, tmp_path):
    (tmp_path / "spiece.model").write_bytes(spiece.read_bytes())
    with pytest.raises(CheckpointError, match="padding token is unknown"):
        read(tmp_path, {"model_type": "siglip"}, TextConfig(100, 16, 8, 1, 1, causal=False, pool="last"))
