"""`Tokenizer`: sentences to tokens, read from the files next to a CLIP or SigLIP by the `tokenizers` library.

Read are `tokenizer.json`, `vocab.json` with `merges.txt`, SentencePiece models, and the vocabulary that OpenAI's and
OpenCLIP's packages hold. Texts are cleaned as the model's own library cleans them; one thing is left out: OpenCLIP
also repairs wrongly decoded characters (ftfy).
"""

import gzip
import html
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from vitreous.models.text import TextConfig
from vitreous.weights.config_files import MAX_CONFIG_BYTES, read_json
from vitreous.weights.fetch import CheckpointFiles
from vitreous.weights.safety import CheckpointError
from vitreous.weights.sentencepiece import SENTENCEPIECE_FILES, read_sentencepiece

CLIP_VOCABULARY = "bpe_simple_vocab_16e6.txt.gz"
CLIP_MERGES = 49152 - 256 - 2  # those that CLIP uses; the file holds more
CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
CLIP_ENDS = ("<|startoftext|>", "<|endoftext|>")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def _spaces(text: str) -> str:
    return " ".join(text.split())


def _unescape(text: str) -> str:
    return html.unescape(html.unescape(text))


CLEANINGS: dict[str, Callable[[str], str]] = {
    "none": lambda text: text,
    "lower": lambda text: text.lower(),  # SigLIP 2 of transformers
    "canonical": lambda text: _spaces(text.lower().translate(PUNCTUATION)),  # SigLIP of transformers
    "open-clip lower": lambda text: _spaces(_unescape(text)).lower(),
    "open-clip whitespace": lambda text: _spaces(_unescape(text)),
    "open-clip canonicalize": lambda text: _spaces(_unescape(text).replace("_", " ").translate(PUNCTUATION).lower()),
}


@dataclass(frozen=True)
class Tokenizer:
    """Sentences to tokens: cleaned, split, cut to the context and padded."""

    encoder: tokenizers.Tokenizer
    context: int
    """Tokens of a sentence, padding included."""
    pad: int
    """The number of the token that fills a sentence up."""
    clean: str = "none"
    """How texts are cleaned: one of `CLEANINGS`."""
    left: bool = False
    """Padding stands before the sentence."""

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Turn sentences into tokens: `[b context]`; what is too long is cut, with its end token kept."""
        self.encoder.enable_truncation(self.context)
        rows = torch.full((len(texts), self.context), self.pad)
        for row, text in zip(rows, texts, strict=True):
            ids = torch.tensor(self.encoder.encode(CLEANINGS[self.clean](text)).ids, dtype=torch.long)
            row[self.context - len(ids) if self.left else 0 :][: len(ids)] = ids
        return rows

    def count(self, text: str) -> int:
        """Count a sentence's tokens before it is cut, with those that begin and end it."""
        self.encoder.no_truncation()
        return len(self.encoder.encode(CLEANINGS[self.clean](text)).ids)


def read_tokenizer(files: CheckpointFiles, sidecar: Mapping[str, Any], config: TextConfig) -> Tokenizer:
    """Make a `Tokenizer` from the vocabulary files and settings that lie next to a text tower's weights."""
    stated = read_json(files.beside("tokenizer_config.json"))
    encoder, bare = _encoder(files, config)
    if encoder.get_vocab_size(with_added_tokens=False) > config.vocabulary:
        raise CheckpointError(
            f"its tokenizer has {encoder.get_vocab_size(with_added_tokens=False)} tokens, its text tower "
            f"{config.vocabulary}: they are not of one model"
        )
    open_clip = "model_cfg" in sidecar or not sidecar
    pad = 0 if open_clip and bare else _number(encoder, stated, "pad_token")
    if pad is None and encoder.padding:
        pad = int(encoder.padding["pad_id"])
    encoder.no_padding()
    if pad is None and not config.causal:
        raise CheckpointError("the padding token is unknown: keep tokenizer_config.json next to the tokenizer")
    tokenizer = Tokenizer(
        encoder, config.context, pad or 0, _cleaning(sidecar, stated), stated.get("padding_side") == "left"
    )
    _check_ends(tokenizer, stated, config)
    return tokenizer


def _encoder(files: CheckpointFiles, config: TextConfig) -> tuple[tokenizers.Tokenizer, bool]:
    """Read the first tokenizer file that is there; and whether it is CLIP's vocabulary alone."""
    try:
        if path := files.beside("tokenizer.json"):
            return tokenizers.Tokenizer.from_str(_bytes(path).decode("utf-8")), False
        vocabulary, merges = files.beside("vocab.json"), files.beside("merges.txt")
        if vocabulary and merges:
            return clip_encoder(*models.BPE.read_file(str(vocabulary), str(merges))), True
        for name in SENTENCEPIECE_FILES:
            if path := files.beside(name):
                return read_sentencepiece(_bytes(path)), False
        if config.vocabulary == 49408 and (path := files.beside(CLIP_VOCABULARY) or _installed_vocabulary()):
            return read_clip_vocabulary(path), True
    except CheckpointError:
        raise
    except Exception as error:  # the library raises plain exceptions
        raise CheckpointError(f"its tokenizer cannot be read ({' '.join(str(error).split())[:120]})") from error
    weights = files.weights[0] if files.origin in ("file", "folder") else "the weights"
    raise CheckpointError(
        f"it has no tokenizer: put its tokenizer.json, or vocab.json and merges.txt, or {SENTENCEPIECE_FILES[0]} next "
        f"to {weights}; for OpenAI's and OpenCLIP's models, {CLIP_VOCABULARY} of their packages"
    )


def clip_encoder(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
    """Make CLIP's byte-pair encoder of a vocabulary and merges."""
    start, end = CLIP_ENDS
    if missing := [token for token in CLIP_ENDS if token not in vocabulary]:
        raise CheckpointError(f"vocab.json lacks {missing[0]}: it is not CLIP's")
    encoder = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, end_of_word_suffix="</w>", unk_token=end)
    )
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    encoder.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CLIP_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    encoder.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CLIP_ENDS])
    encoder.post_processor = processors.RobertaProcessing(
        (end, vocabulary[end]), (start, vocabulary[start]), trim_offsets=False, add_prefix_space=False
    )
    return encoder


def read_clip_vocabulary(path: Path) -> tokenizers.Tokenizer:
    """Read `bpe_simple_vocab_16e6.txt.gz`: merges alone, from which the vocabulary follows."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = file.read(MAX_CONFIG_BYTES).split("\n")[1 : CLIP_MERGES + 1]
    merges = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in merges), *CLIP_ENDS]
    return clip_encoder({token: i for i, token in enumerate(tokens)}, merges)


def _installed_vocabulary() -> Path | None:
    """Find CLIP's vocabulary in an installed package of OpenCLIP or OpenAI."""
    for package in ("open_clip", "clip"):
        found = find_spec(package)
        if found and found.origin and (path := Path(found.origin).parent / CLIP_VOCABULARY).is_file():
            return path
    return None


def _cleaning(sidecar: Mapping[str, Any], stated: Mapping[str, Any]) -> str:
    """Return how the model's library cleans texts before they are split."""
    if sidecar.get("model_type") == "siglip2":
        return "lower"
    if sidecar.get("model_type") == "siglip":  # the second of a fixed size is stored as the first
        second = any(name in str(stated.get("tokenizer_class")) for name in ("Gemma", "Siglip2"))
        return "lower" if second else "canonical"
    if sidecar.get("model_type") == "clip":
        return "none"
    text = (sidecar.get("model_cfg") or {}).get("text_cfg") or {}
    kwargs = text.get("tokenizer_kwargs") or {}
    usual = "whitespace" if text.get("hf_tokenizer_name") else "lower"
    clean = f"open-clip {kwargs.get('clean', usual)}"
    if set(kwargs) - {"clean"} or clean not in CLEANINGS:
        raise CheckpointError(f"tokenizer_kwargs={kwargs!r:.60} of text_cfg is not supported")
    return clean


def _check_ends(tokenizer: Tokenizer, stated: Mapping[str, Any], config: TextConfig) -> None:
    """Let the tokenizer end sentences as its config says; raise if the tower would find no end."""
    encoder = tokenizer.encoder
    end = _number(encoder, stated, "eos_token")
    if stated.get("add_eos_token") and end is not None and encoder.encode("a").ids[-1:] != [end]:
        token = encoder.id_to_token(end)
        encoder.post_processor = processors.TemplateProcessing(single=f"$A {token}", special_tokens=[(token, end)])
    ids = encoder.encode("a").ids
    if max(ids) >= config.vocabulary:
        raise CheckpointError(f"its tokenizer gives token {max(ids)}, its text tower has {config.vocabulary}")
    if config.pool == "end" and config.end_token not in ids:
        raise CheckpointError(f"its tokenizer adds no token {config.end_token}, where its text tower reads a sentence")
    if config.pool == "largest" and (max(ids) != ids[-1] or len(ids) < 3):
        raise CheckpointError("its tokenizer does not end a sentence with the largest token: it is not CLIP's")


def _number(encoder: tokenizers.Tokenizer, stated: Mapping[str, Any], name: str) -> int | None:
    """Return the number of a token that `tokenizer_config.json` names."""
    token = stated.get(name)
    token = token.get("content") if isinstance(token, Mapping) else token
    found: int | None = encoder.token_to_id(token) if isinstance(token, str) else None
    return found


def _bytes(path: Path) -> bytes:
    if path.stat().st_size > 2 * MAX_CONFIG_BYTES:
        raise CheckpointError(f"{path.name}: expected at most {2 * MAX_CONFIG_BYTES >> 20} MiB: get it again")
    return path.read_bytes()
