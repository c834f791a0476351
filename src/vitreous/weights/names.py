"""Parse a model's name: a path, a Hub repository, or a name of timm's, torchvision's or Google's. Works offline.

| name                                                  | means                                              |
|-------------------------------------------------------|----------------------------------------------------|
| `vit.safetensors`, `runs/7/`, `~/vit.pth`             | a file or a folder: an existing path comes first   |
| `org/name`, `hf-hub:org/name`, `org/name@revision`    | a repository of the Hugging Face Hub               |
| `vit_base_patch16_224.augreg2_in21k_ft_in1k`          | timm's name with its tag: `timm/…` on the Hub      |
| `vit_base_patch16_224`                                | the same, with the tag it has in `DEFAULT_TAGS`    |
| `torchvision:vit_b_16`, `torchvision:vit_b_16.MEMBER` | torchvision's weights: the default, or `MEMBER`    |
| `resnet50`, `vit_b_16`                                | the same, for the names in `TORCHVISION_MODELS`    |
| `ViT-B_16.npz`, `augreg/….npz`, `gs://vit_models/…`   | a file of Google's public bucket                   |
| `https://…/vit.safetensors`                           | any other weights file on the web                  |
| `timm:NAME@FILE`                                      | timm's classifier NAME with the weights of a file  |
| `packaged`, `packaged:vit_tiny`                       | the ViT-Ti/16 inside this package: no download     |
| `packaged:cifar10`, `cifar10`                         | the CIFAR-10 model inside this package             |
"""

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from vitreous.runtime.http import check_address

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".npz", ".ckpt", ".tar", ".index.json")  # suffixes of weights files

DEFAULT_TAGS = {
    **dict.fromkeys(
        (
            *("vit_tiny_patch16_224", "vit_tiny_patch16_384"),
            *("vit_small_patch16_224", "vit_small_patch16_384"),
            *("vit_small_patch32_224", "vit_small_patch32_384"),
            *("vit_base_patch16_384", "vit_base_patch32_224", "vit_base_patch32_384"),
            *("vit_large_patch16_224", "vit_large_patch16_384"),
        ),
        "augreg_in21k_ft_in1k",
    ),
    "vit_base_patch16_224": "augreg2_in21k_ft_in1k",
    "vit_large_patch32_384": "orig_in21k_ft_in1k",
    **{f"deit_{size}_patch16_224": "fb_in1k" for size in ("tiny", "small", "base")},
    **{f"deit_{size}_distilled_patch16_224": "fb_in1k" for size in ("tiny", "small", "base")},
    **{f"deit3_{size}_patch16_224": "fb_in1k" for size in ("small", "medium", "base", "large")},
    **{f"vit_{size}_patch14_dinov2": "lvd142m" for size in ("small", "base", "large", "giant")},
    **{f"vit_{size}_patch14_reg4_dinov2": "lvd142m" for size in ("small", "base", "large", "giant")},
}
"""timm's names that may be given without a tag, and the tag that is then used."""

TORCHVISION_MODELS = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    *("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"),
)
"""torchvision's names that may be given without `torchvision:`."""

DEFAULT = "packaged:vit_tiny"
"""The model that answers when none is named."""
PACKAGED = {
    "packaged": "vit_tiny",
    "packaged:vit_tiny": "vit_tiny",
    "packaged:cifar10": "cifar10",
    "cifar10": "cifar10",
}
"""Names of the models inside the package, and the folder of each."""
GOOGLE_BUCKET = "https://storage.googleapis.com/vit_models"
GOOGLE_FOLDERS = {  # pattern of a bare file name → its folder in the bucket
    r"(R\d+\+)?ViT-[A-Za-z]+_\d+\.npz": "imagenet21k",
    r"(R\d+\+)?ViT-[A-Za-z]+_\d+-\d+\.npz": "imagenet21k+imagenet2012",
    r"(R\d*_)?(Ti|S|B|L)_\d+-i[A-Za-z0-9_.-]+\.npz": "augreg",
}
GOOGLE_PATH = re.compile(r"(imagenet21k|imagenet21k\+imagenet2012|augreg|sam|gsam)/[A-Za-z0-9_.+-]+\.npz")

LOOKS_LIKE_A_PATH = re.compile(r"[./\\~]|[A-Za-z]:[\\/]")
SAFE_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class ParsedName:
    """A parsed model name: `target` is a path, a repository, a model or an address, by `kind`."""

    kind: str  # `file`, `folder`, `hub`, `torchvision`, `google`, `url` or `packaged`
    target: str
    version: str | None = None  # the revision of a Hub repository, or the member of torchvision's weights


def parse(name: str | Path) -> ParsedName:
    """Parse a model's `name` without opening a file or using the network. A `Path` is always a path.

    >>> parse("google/vit-base-patch16-224@main")
    ParsedName(kind='hub', target='google/vit-base-patch16-224', version='main')
    >>> parse("vit_tiny_patch16_224").target
    'timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k'
    >>> parse("ViT-B_16.npz")
    ParsedName(kind='google', target='imagenet21k/ViT-B_16.npz', version=None)
    """
    text = os.path.expanduser(name)
    if not text:
        raise ValueError("the model has no name: expected a path, a Hub name such as org/name, or 'packaged'")
    if isinstance(name, str):
        if text in PACKAGED:  # before the disk: a dataset's folder must not hide a packaged model
            return ParsedName("packaged", PACKAGED[text])
        if (prefixed := _parse_prefixed(text)) is not None:
            return prefixed
    if os.path.exists(text):
        return ParsedName("folder" if os.path.isdir(text) else "file", text)
    if isinstance(name, str) and (google := _parse_google(text)) is not None:
        return google
    if isinstance(name, Path) or LOOKS_LIKE_A_PATH.match(text) or text.endswith(SUFFIXES):
        raise FileNotFoundError(f"there is no file or folder {os.path.abspath(text)}: check the path")
    if (match := re.fullmatch(r"(\w+)(?:\.([A-Z]\w*))?", text)) and match[1] in TORCHVISION_MODELS:
        return ParsedName("torchvision", match[1], match[2])
    return _parse_hub(text)


def _parse_prefixed(text: str) -> ParsedName | None:
    """Parse a name with a prefix: `packaged:`, `hf-hub:`, `torchvision:`, `gs://`, `https://`."""
    prefix, colon, rest = text.partition(":")
    if not colon:
        return None
    if prefix == "packaged":
        raise ValueError(f"the package holds no model {rest!r}: it holds {', '.join(sorted(set(PACKAGED.values())))}")
    if prefix in ("hf-hub", "hf_hub"):
        return _parse_hub(rest)
    if prefix == "torchvision":
        model, _, member = rest.replace("/", ".").partition(".")
        return ParsedName("torchvision", model, member or None)
    if prefix not in ("gs", "http", "https") or not rest.startswith("//"):
        return None
    for bucket in ("gs://vit_models/", f"{GOOGLE_BUCKET}/"):
        if text.startswith(bucket):
            path = unquote(text.removeprefix(bucket))
            safe = all(SAFE_FILE_NAME.fullmatch(part) for part in path.split("/"))
            if not safe or not path.endswith(".npz"):
                raise ValueError(f"{text} is not a model: expected {bucket}<folder>/<name>.npz")
            return ParsedName("google", path)
    if prefix == "gs":
        raise ValueError(f"{text} is in a bucket that is not supported: expected gs://vit_models/…, or an https:// URL")
    check_address(text)
    if not urlsplit(text).path.endswith(SUFFIXES[:-1]):  # an index alone would come without its shards
        raise ValueError(
            f"{text} does not end like a weights file ({', '.join(SUFFIXES[:-1])}): give the address of the file, or "
            "org/name for a repository of the Hub"
        )
    return ParsedName("url", text)


def _parse_google(text: str) -> ParsedName | None:
    """Parse a model's name as that of one of Google's files, with or without its folder; None if it is another."""
    if GOOGLE_PATH.fullmatch(text):
        return ParsedName("google", text)
    for pattern, folder in GOOGLE_FOLDERS.items():
        if re.fullmatch(pattern, text):
            return ParsedName("google", f"{folder}/{text}")
    return None


def _parse_hub(text: str) -> ParsedName:
    """Parse `org/name`, `name.tag` and the bare names of `DEFAULT_TAGS`, each with or without `@revision`."""
    repository, at, revision = text.partition("@")
    if at and not revision:
        raise ValueError(f"{text} ends in @: expected a revision after it, such as {repository}@main")
    bare = repository.removeprefix("timm/")
    if bare in DEFAULT_TAGS:
        repository = f"timm/{bare}.{DEFAULT_TAGS[bare]}"
    elif re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", repository):
        repository = f"timm/{repository}"
    elif not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repository, re.ASCII):
        from vitreous.weights.unsupported import unsupported_family  # not at the top: it needs torch

        if (family := unsupported_family(bare)) is not None:
            raise ValueError(f"{text!r} is a {family}, which is not supported")
        close = difflib.get_close_matches(bare, [*DEFAULT_TAGS, *TORCHVISION_MODELS, *PACKAGED], n=3)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise ValueError(
            f"no model is known by the name {text!r}{hint}: for a timm name add its tag ({bare}.<tag>), for the Hub "
            "write org/name, for a file or folder a path that exists"
        )
    return ParsedName("hub", repository, revision or None)
