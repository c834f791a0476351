"""Read a SentencePiece model file (a protocol buffer) into an encoder of the `tokenizers` library."""

import struct
from collections.abc import Iterator

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors

from vitreous.weights.safety import CheckpointError

SENTENCEPIECE_FILES = ("spiece.model", "tokenizer.model", "sentencepiece.model")
NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4  # kinds of pieces
UNIGRAM = 1
END = "</s>"

Field = int | bytes


def read_fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """Yield the number and value of each field of a protocol buffer's message.

    >>> list(read_fields(bytes([0x0A, 2, 104, 105, 0x18, 3])))
    [(1, b'hi'), (3, 3)]
    """
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise CheckpointError("the SentencePiece model is damaged: get it again")
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        length = {1: 8, 5: 4}.get(kind)
        length = varint() if kind == 2 else length
        if length is None or at + length > len(data):
            raise CheckpointError("the SentencePiece model is damaged: get it again")
        yield key >> 3, data[at : at + length]
        at += length


def read_sentencepiece(data: bytes) -> tokenizers.Tokenizer:
    """Make the encoder of a SentencePiece model of the unigram kind; sentences end with `</s>`."""
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Field] = {}
    normalizer: dict[int, Field] = {}
    for number, value in read_fields(data):
        if number == 1 and isinstance(value, bytes):
            piece = dict(read_fields(value))
            name, score = piece.get(1, b""), piece.get(2, b"\0\0\0\0")
            if not isinstance(name, bytes) or not isinstance(score, bytes) or len(score) != 4:
                raise CheckpointError("the SentencePiece model is damaged: get it again")
            pieces.append((name.decode("utf-8"), struct.unpack("<f", score)[0], int(piece.get(3, NORMAL))))
        elif number == 2 and isinstance(value, bytes):
            trainer = dict(read_fields(value))
        elif number == 3 and isinstance(value, bytes):
            normalizer = dict(read_fields(value))
    if trainer.get(3, UNIGRAM) != UNIGRAM:
        raise CheckpointError("only SentencePiece models of the unigram kind are read: give its tokenizer.json instead")
    names = [name for name, _, _ in pieces]
    unknown = next((i for i, piece in enumerate(pieces) if piece[2] == UNKNOWN), None)
    if unknown is None or END not in names:
        raise CheckpointError(
            f"the SentencePiece model lacks an unknown piece or {END}: give its tokenizer.json instead"
        )
    encoder = tokenizers.Tokenizer(
        models.Unigram([(name, score) for name, score, _ in pieces], unknown, bool(trainer.get(35, 0)))
    )
    steps: list[normalizers.Normalizer] = []
    charsmap = normalizer.get(2, b"")
    if isinstance(charsmap, bytes) and charsmap:
        steps.append(normalizers.Precompiled(charsmap))
    if normalizer.get(4, 1):  # remove_extra_whitespaces
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    encoder.normalizer = normalizers.Sequence(steps)
    encoder.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always" if normalizer.get(3, 1) else "never")
    special = [AddedToken(name, special=True, normalized=False) for name, _, kind in pieces if kind == CONTROL]
    encoder.add_special_tokens(special)
    encoder.add_tokens([AddedToken(name, normalized=False) for name, _, kind in pieces if kind == USER])
    encoder.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, names.index(END))])
    return encoder
