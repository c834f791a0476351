"""Words as classes: `with_words` gives a CLIP or SigLIP sentences for classes, `similarity` compares images with texts.

A sentence stands wherever a class does, since the model that `with_words` returns is a classifier: `classify`,
`evaluate`, `explain` and the explorer take it as they take any other.
"""

import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.data.finding import Images
from vitreous.data.image_dataset import NOUNS
from vitreous.models.text import SentenceHead, TextTower, begin_head, with_sentences
from vitreous.models.vit import ViT
from vitreous.predict.class_matching import find_class
from vitreous.predict.embed import embed
from vitreous.weights.class_names import imagenet_names, imagenet_wordnet_ids
from vitreous.weights.load import Model, loaded

PLAIN = ("{}",)
ENSEMBLE = (  # the seven templates that CLIP's authors chose for ImageNet
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
CONTRAST = "a photo"
"""What a CLIP weighs a single sentence against: alone it would have a probability of 1."""
ELSE = "anything else"
"""The other answer to a single sentence of a SigLIP, whose logit is 0 by definition."""
LONGEST = 1000
"""Characters of a sentence."""
SHOWN = 80
"""Characters of a sentence in the name of its class, on pages and figures."""
BATCH = 64
"""Sentences in a forward pass of the text tower."""


def with_words(
    model: Model,
    classes: Sequence[str],
    templates: Sequence[str] = PLAIN,
    *,
    tower: TextTower | None = None,
    repeated: bool = False,
    note: Callable[[str], object] = lambda line: None,
) -> ViT:
    """Return the model with these words as its classes; it shares the weights of `model`, which is not changed.

    A template has `{}` where a class stands; of several, the mean of a class's text features is taken. `tower` is the
    model's text tower, if it is loaded already. Names that occur twice are an error unless `repeated`. `note` gets a
    line for each sentence that is too long.
    """
    if not isinstance(model, ViT) or model.card is None:
        raise ValueError("words need the vision tower of a CLIP or SigLIP: load one with both towers")
    if model.card.task != "classify":
        raise ValueError(f"{model.card.name} answers with {NOUNS[model.card.task]} of its own: leave the words out")
    names = check_sentences(classes)
    if not repeated and (twice := [name for name, count in Counter(names).items() if count > 1]):
        raise ValueError(f"the class {twice[0]!r:.80} is named twice: name each once")
    tower = tower or tower_of(model)
    if len(names) == 1 and tower.logit_bias is None:
        raise ValueError(f"a CLIP compares: {names[0]!r:.60} alone would always get 100 %: name at least two classes")
    features = text_features(tower, names, templates, note=note)
    worded = with_sentences(model, features, tower.logit_scale, tower.logit_bias)
    worded.card = replace(
        model.card, class_names=names, head="classifier", independent=tower.logit_bias is not None, training=None
    )
    return worded


def with_target(
    model: Model,
    target: str,
    classes: Sequence[str] = (),
    *,
    tower: TextTower | None = None,
    note: Callable[[str], object] = lambda line: None,
) -> ViT:
    """Return the model with words to explain, a sentence, as its first class, and what it is weighed against.

    A CLIP weighs it against the other `classes`, by default "a photo". A SigLIP judges each sentence by itself: its
    second class is "anything else", so that the probability is the model's own. `tower` is the model's text tower, if
    it is loaded already. A long sentence gives the class its beginning for a name.
    """
    if not isinstance(model, ViT) or model.card is None:
        raise ValueError("words need the vision tower of a CLIP or SigLIP: load one with both towers")
    (sentence,) = check_sentences([target])
    others = [name for name in classes if name.strip() != sentence]
    name = sentence if len(sentence) <= SHOWN else f"{sentence[: SHOWN - 1].rstrip()}…"
    tower = tower or tower_of(model)
    if tower.logit_bias is None:
        if not others:
            note(f"a CLIP compares: the probability is that of {sentence!r:.60} against {CONTRAST!r}")
        worded = with_words(model, [sentence, *(others or [CONTRAST])], tower=tower, note=note)
        worded.card.class_names = (name, *worded.card.class_names[1:])
        return worded
    if others:
        raise ValueError("this model judges each sentence by itself: explain one at a time, with the target alone")
    features = text_features(tower, [sentence], note=note)
    bias = torch.stack([tower.logit_bias.detach(), torch.zeros_like(tower.logit_bias)])
    worded = with_sentences(model, torch.cat([features, torch.zeros_like(features)]), tower.logit_scale, bias)
    worded.card = replace(model.card, class_names=(name, ELSE), head="classifier", training=None)
    return worded


@dataclass(frozen=True)
class TwoTowers:
    """A CLIP or SigLIP with both towers loaded, which can be asked for any sentence."""

    model: ViT
    tower: TextTower
    classes: tuple[str, ...] = ()
    """What a CLIP weighs a sentence against."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def asked(self, sentence: str) -> ViT:
        """Return the CLIP or SigLIP with a user's words as its first class, as `with_target` does.

        Several threads may ask.
        """
        with self.lock:  # a tokenizer keeps the length that it cuts sentences to
            return with_target(self.model, sentence, self.classes, tower=self.tower)


def two_towers(
    model: ViT, classes: Sequence[str] = (), *, note: Callable[[str], object] = lambda line: None
) -> TwoTowers | None:
    """Pair a model with its text tower, so that any words can be its classes; None if it has no text tower.

    If it could have one, a note says why it has none.
    """
    if model.card.head == "classifier" or not re.search("clip|siglip", model.card.report.format):
        return None
    try:
        tower = tower_of(model)
    except (ValueError, OSError) as error:
        note(f"sentences cannot be asked for: {error}")
        return None
    return TwoTowers(model, tower, tuple(classes) if tower.logit_bias is None else ())


def tower_of(model: Model) -> TextTower:
    """Return the text tower that turns words into the classes of a CLIP or SigLIP, with its tokenizer."""
    from vitreous.weights.load_text import load_text  # not at the top: `tokenizers` takes a tenth of a second to import

    return load_text(model)


def name_target(
    model: Model,
    target: int | str | None,
    classes: Sequence[str] = (),
    *,
    note: Callable[[str], object] = lambda line: None,
) -> tuple[Model, int | None]:
    """Turn a target in words into a class of a CLIP or SigLIP; return that model and the index of the class.

    An index, and any target of a classifier, is one of the model's own classes unless `classes` are given.
    """
    sentence = isinstance(target, str) and not target.isdecimal() and model.card.head != "classifier"
    if not classes and not sentence:
        return model, find_class(target, model)
    if isinstance(target, str):
        return with_target(model, target, classes, note=note), 0
    worded = with_words(model, classes, note=note)
    if worded.card.independent:
        raise ValueError("this model judges each sentence by itself: name the one to explain as the target")
    return worded, find_class(target, worded)


@torch.no_grad()
def text_features(
    tower: TextTower,
    texts: Sequence[str],
    templates: Sequence[str] = PLAIN,
    *,
    note: Callable[[str], object] = lambda line: None,
) -> Tensor:
    """Compute features of words or sentences `[s e]`; of several templates, the mean of the normalised ones."""
    for template in templates:
        if template.count("{}") != 1:
            raise ValueError(f"a template has {{}} once, where the class stands, got {template!r:.80}")
    prompts = [template.replace("{}", text) for text in texts for template in templates]
    for prompt in prompts:
        if (count := tower.tokenizer.count(prompt)) > tower.config.context:
            note(f"{prompt!r:.60} has {count} tokens, the model reads the first {tower.config.context}")
    tokens = tower.tokenizer(prompts).to(tower.pos_embed.device)
    features = torch.cat([tower(part) for part in tokens.split(BATCH)])  # [s·templates e]
    if len(templates) > 1:
        features = F.normalize(features, dim=-1).view(len(texts), len(templates), -1).mean(dim=1)
    return features


def embed_text(texts: str | Sequence[str], model: Model | str) -> Tensor:
    """Turn words or sentences into text features of a CLIP or SigLIP: `[texts e]`, or `[e]` of one.

    `embed` gives those of images; the cosine of the two is their similarity.

    >>> embed_text(["a cat", "a dog"], "openai/clip-vit-base-patch32").shape  # doctest: +SKIP
    torch.Size([2, 512])
    """
    names = check_sentences([texts] if isinstance(texts, str) else texts)
    found = text_features(tower_of(loaded(model)), names).float().cpu()
    return found[0] if isinstance(texts, str) else found


def similarity(
    images: Images,
    texts: str | Sequence[str],
    model: Model | str,
    *,
    batch_size: int = 8,
    device: str = "auto",
    precision: str = "fp32",
) -> Tensor:
    """Compare images with words: the cosine similarity in the space that a CLIP's or SigLIP's towers share.

    One image or one text gives no axis of its own: `[images texts]`, `[texts]`, `[images]` or a number. Cosines of a
    CLIP lie close together; `classify(images, model, classes=texts)` gives probabilities.

    >>> cosines = similarity("photo.jpg", ["a cat", "a dog"], "openai/clip-vit-base-patch32")  # doctest: +SKIP
    >>> similarity("photo.jpg", ["a cat", "a dog"], "packaged:cifar10")
    Traceback (most recent call last):
    ValueError: packaged:cifar10 has no text tower: words need a CLIP or SigLIP
    """
    model = loaded(model)
    described = F.normalize(embed_text([texts] if isinstance(texts, str) else texts, model), dim=-1)
    seen = embed(images, model, batch_size=batch_size, device=device, precision=precision)
    if not seen.numel():
        seen = seen.new_empty(0, described.shape[1])
    if seen.shape[-1] != described.shape[1]:
        raise ValueError(
            f"the model has {seen.shape[-1]} features of images and {described.shape[1]} of texts: pass the CLIP or "
            "SigLIP as it was loaded, without classes of its own"
        )
    found = F.normalize(seen.float(), dim=-1) @ described.T
    return found[..., 0] if isinstance(texts, str) else found


def check_sentences(texts: Sequence[str]) -> tuple[str, ...]:
    """Return words for classes without spaces around them; raise for empty, very long or unprintable ones or none."""
    if isinstance(texts, str):
        raise ValueError(f"expected a list of sentences, got one text: pass [{texts!r:.40}]")
    listed = list(texts) if isinstance(texts, Iterable) else [texts]
    if strange := [text for text in listed if not isinstance(text, str)]:
        raise ValueError(f"expected a list of sentences, each a text, got {strange[0]!r:.40}")
    found = tuple(text.strip() for text in listed)
    if not found:
        raise ValueError("no words were given: name at least one class")
    for text in found:
        if not text:
            raise ValueError("a class is empty: name it in words")
        if len(text) > LONGEST:
            raise ValueError(f"a sentence has at most {LONGEST:,} characters, {text[:40]!r}… has {len(text):,}")
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
            raise ValueError(f"a sentence holds a control character: {text[:40]!r}")
    return found


def read_words(words: Sequence[str], flag: str = "--classes") -> tuple[str, ...]:
    """Read the words that a CLIP or SigLIP gets as classes: these, or the lines of the one text file that they name.

    >>> read_words(["a cat", "a dog"])
    ('a cat', 'a dog')
    """
    files = [word for word in words if len(word) < 256 and Path(word).is_file()]
    if len(words) == 1 and files:
        path = Path(files[0])
        try:
            if path.stat().st_size > 2**24:
                raise ValueError(f"{path} is larger than 16 MiB: expected a text file")
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not a text file: {flag} takes words, or a file with one a line") from None
        return tuple(line.strip() for line in lines if line.strip())
    if files:
        raise ValueError(f"{flag} takes words, or one file of them, and {files[0]} is a file: name images first")
    return tuple(words)


def with_folder_names(
    model: Model,
    names: Sequence[str],
    templates: Sequence[str] = PLAIN,
    *,
    note: Callable[[str], object] = lambda line: None,
) -> Model:
    """Return a classifier as it is, and a CLIP or SigLIP with a dataset's class names, as words, for its classes."""
    if model.card.head == "classifier":
        if tuple(templates) != PLAIN:
            raise ValueError(f"{model.card.name} has classes of its own: a template is for a CLIP or SigLIP")
        return model
    try:
        tower = tower_of(model)
    except (ValueError, OSError) as error:
        raise ValueError(f"{model.card.name} has no classifier: use --probe knn or --probe linear ({error})") from error
    return with_words(model, _noted_words(names, note), templates, tower=tower, repeated=True, note=note)


def begin_with_words(
    model: Model, names: Sequence[str], template: str = "{}", *, note: Callable[[str], object] = lambda line: None
) -> None:
    """Turn a dataset's class names into words, with whose text features a CLIP's or SigLIP's linear head begins."""
    if not isinstance(model, ViT) or model.card.head == "classifier":
        raise ValueError(f"{model.card.name} has no text tower: a head begun with text needs a CLIP or SigLIP")
    words, tower = _noted_words(names, note), tower_of(model)
    begin_head(model, text_features(tower, words, [template], note=note), tower.logit_scale, tower.logit_bias)
    sentence = template.replace("{}", words[0])
    note(f"a head for {len(words)} classes begins with the text features of their names, such as {sentence!r:.60}")


def _noted_words(names: Sequence[str], note: Callable[[str], object]) -> tuple[str, ...]:
    """Return a dataset's class names as words, and note those that several classes share."""
    words = folder_words(names)
    for word, count in Counter(words).items():
        if count > 1:
            note(f"{count} classes are called {word!r:.60}: the model cannot tell them apart")
    return words


def named_by_folders(model: Model, names: Sequence[str]) -> bool:
    """Return whether the words that a CLIP or SigLIP has as classes were made of these folders' names, in order."""
    return isinstance(getattr(model, "head", None), SentenceHead) and model.card.class_names == folder_words(names)


def folder_words(names: Sequence[str]) -> tuple[str, ...]:
    """Turn the names of class folders into words for a CLIP or SigLIP; WordNet ids alone become ImageNet's names.

    >>> folder_words(["n02123045_tabby_cat", "golden_retriever"]), folder_words(["n02123045", "n01440764"])
    (('tabby cat', 'golden retriever'), ('tabby', 'tench'))
    """
    if all(re.fullmatch(r"n\d{8}", name) for name in names):
        known = dict(zip(imagenet_wordnet_ids(), imagenet_names(), strict=True))
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"{unknown[0]} is not among ImageNet-1k's WordNet ids: name the folder in words")
        return tuple(known[name] for name in names)
    if numbers := [name for name in names if not any(character.isalpha() for character in name)]:
        raise ValueError(f"the class {numbers[0]!r:.40} is no word: name the folders in words, for a CLIP or SigLIP")
    return tuple(clean_name(name) for name in names)


def clean_name(name: str) -> str:
    """Turn a class's name into words for a sentence: without a WordNet id, underscores or hyphens between words.

    >>> clean_name("n02123045_tabby_cat"), clean_name("Golden-Retriever"), clean_name("n02123045")
    ('tabby cat', 'Golden Retriever', 'n02123045')
    """
    plain = re.sub(r"^n\d{8}[\s_-]+", "", name)
    return re.sub(r"[\s_-]+", " ", plain).strip() or name
