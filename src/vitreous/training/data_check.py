"""Check a run's images and targets: unreadable or copied files, unequal classes, sizes, ranges; data that changed."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from vitreous.data.image_dataset import ImageDataset, digest, list_some, spell_labels
from vitreous.data.images import ImageError, read_image
from vitreous.data.masks import IGNORE
from vitreous.data.prefetch import prefetch
from vitreous.data.splits import check_targets
from vitreous.runtime.wording import percent
from vitreous.training.config import TrainConfig
from vitreous.training.stream_batches import StreamedData
from vitreous.weights.load import Model

UNEQUAL = 2  # classes are unequal if the largest has this many times the images of the smallest
SAMPLE = 16  # images that are opened to learn their size
THUMBNAIL_MODEL = 64  # up to this size, a model made for small images; photographs shrunk to it lose what they show
SHRINK = 4  # how many times smaller an image may become for such a model
FILES = 200_000  # above this many files, copies are not looked for
NAMED = 5  # unreadable images that the remark names
MASKS = 200  # masks that are read for the shares of their classes
LISTED = 8  # classes, labels or numbers that a remark lists


def data_remarks(
    train: ImageDataset, test: ImageDataset, unreadable: Sequence[ImageError] = (), balance: str = "none"
) -> list[str]:
    """Describe in a line each what is wrong with the images of a run, `unreadable` ones being left out already.

    >>> zoo = ImageDataset("zoo", ("cat", "dog"), (0, 0, 0, 1), lambda i: b"")
    >>> for line in data_remarks(zoo, zoo.take([0])): print(line)
    classes are unequal: cat 3, dog 1: rare ones are learned less well, try --balance sampling or --balance loss
    1 class has a single image: 'dog'; add some, it cannot be tested
    """
    lines = []
    if unreadable:
        total = len(train) + len(test) + len(unreadable)
        named = "; ".join(str(problem) for problem in unreadable[:NAMED])
        more = f"; and {len(unreadable) - NAMED} more" if len(unreadable) > NAMED else ""
        left = "is" if len(unreadable) == 1 else "are"
        lines.append(f"{len(unreadable)} of {total:,} images cannot be read and {left} left out: {named}{more}")
    lines += target_remarks(train, test) if train.task != "classify" else folder_remarks(train)
    if are_unequal(train.labels):
        rare = {
            "none": "rare ones are learned less well, try --balance sampling or --balance loss",
            "sampling": "each is drawn equally often (--balance sampling)",
            "loss": "the loss of rare ones weighs more (--balance loss)",
        }
        lines.append(f"classes are unequal: {spell_counts(train)}: {rare[balance]}")
    counts = Counter(train.labels) + Counter(test.labels) if train.task == "classify" else Counter[int]()
    if alone := [train.class_names[label] for label, count in sorted(counts.items()) if count == 1]:
        what = "class has a single image" if len(alone) == 1 else "classes have a single image each"
        they = "it" if len(alone) == 1 else "they"
        lines.append(f"{len(alone)} {what}: {list_some(alone)}; add some, {they} cannot be tested")
    tested = {*test.labels, *(label for label, count in counts.items() if count == 1)}
    if untested := [train.class_names[label] for label in sorted(counts) if label not in tested]:
        whose = "its" if len(untested) == 1 else "their"
        lines.append(f"no held-out image of {list_some(untested)}: {whose} accuracy is unknown")
    if copies := find_copies(train, test):
        (i, j), count = copies[0], len(copies)
        what = "is a copy of a training image" if count == 1 else "are copies of training images"
        too_good = "accuracy is too high" if train.task == "classify" else "result is too good"
        lines.append(
            f"{count} of {len(test):,} held-out images {what} ({test.describe(i)} = {train.describe(j)}): the "
            f"{too_good} by as much as they are guessed better; remove them"
        )
    return lines


def folder_remarks(train: ImageDataset) -> list[str]:
    """Warn before training if a run's data has folders below those of the classes that may be the classes meant.

    There is a line if each image lies in such a folder and they differ in name.

    >>> paths = [Path("zoo/2024/cat/1.png"), Path("zoo/2024/dog/2.png"), Path("zoo/2025/cat/3.png")]
    >>> for line in folder_remarks(ImageDataset("zoo", ("2024", "2025"), (0, 0, 1), paths.__getitem__)): print(line)
    the folders 'cat', 'dog' below the classes are not classes: for those pass --data zoo/2024 or a table of labels
    """
    below: dict[Path, set[str]] = {}
    for i, label in enumerate(train.labels):
        path, name = train.image(i), train.class_names[label]
        parents = list(path.parents) if isinstance(path, Path) else []
        depth = next((n for n, parent in enumerate(parents) if parent.name == name), 0)
        if not depth:
            return []
        below.setdefault(parents[depth], set()).add(parents[depth - 1].name)
    names = sorted(set().union(*below.values()))
    if len(names) < 2:
        return []
    best = max(below, key=lambda folder: len(below[folder]))
    passed = f"--data {best} or a table of labels" if len(below[best]) > 1 else "a table of labels"
    return [f"the folders {list_some(names)} below the classes are not classes: for those pass {passed}"]


def target_remarks(train: ImageDataset, test: ImageDataset) -> list[str]:
    """Describe the targets of a run in a line or two: how frequent labels are, ranges of numbers, shares of pixels.

    >>> angles = np.array([[-3.0], [4.0]], np.float32)
    >>> zoo = ImageDataset("zoo", ("angle",), (0, 0), Path, task="regress", targets=angles)
    >>> target_remarks(zoo, zoo)
    ['numbers of 2 training images: angle -3 to 4 (mean 0.5)']
    """
    if train.mask is not None:
        return [mask_remark(train)]
    assert train.targets is not None
    assert test.targets is not None
    images = f"{len(train):,} training images"
    if train.task == "regress":
        columns = zip(train.class_names, train.targets.astype(np.float64).T, strict=True)
        spelled = [f"{name} {x.min():.4g} to {x.max():.4g} (mean {x.mean():.4g})" for name, x in columns]
        return [f"numbers of {images}: {_list_ends(spelled)}"]
    counts = sorted(zip(train.targets.sum(0), train.class_names, strict=True), key=lambda pair: -pair[0])
    none = int((train.targets.sum(1) == 0).sum())
    lines = [f"labels of {images}: {_list_ends([f'{name} {int(n):,}' for n, name in counts])}; without any: {none:,}"]
    missing = [name for name, n in zip(test.class_names, test.targets.sum(0), strict=True) if not n]
    if missing:
        what = "label" if len(missing) == 1 else f"{len(missing)} labels"
        they = "it is" if len(missing) == 1 else "they are"
        lines.append(f"no held-out image has the {what} {list_some(missing)}: {they} not tested")
    return lines


def mask_remark(data: ImageDataset) -> str:
    """Describe the shares of pixels that the classes of a run's masks have, in a line; of many masks, some are read."""
    some = data.spread(MASKS)
    assert some.mask is not None
    totals = np.zeros(256, np.int64)
    for mask in prefetch(some.mask, range(len(some))):
        totals += mask.histogram()
    shares = totals / totals.sum()
    spelled = [f"{name} {percent(shares[i])}" for i, name in enumerate(data.class_names)]
    ignored = [f"ignored {percent(shares[IGNORE])}"] if totals[IGNORE] else []
    which = "" if len(some) == len(data) else f" of {len(data):,}"
    return f"pixels of {len(some):,}{which} training masks: {', '.join([_list_ends(spelled), *ignored])}"


def check_images_left(train: ImageDataset, test: ImageDataset, unreadable: Sequence[ImageError]) -> None:
    """Raise if unreadable images leave a class, or the held-out images, empty."""
    if not unreadable:
        return
    kept = set(train.labels)
    lost = [name for label, name in enumerate(train.class_names) if label not in kept]
    what = ""
    if train.task == "classify" and lost:
        what = f"no readable image to learn from in {list_some(lost)}"
    elif not len(train) or not len(test):
        what = f"no readable image to {'test on' if len(train) else 'learn from'}"
    if what:
        raise ValueError(f"{what}: {len(unreadable)} cannot be read, such as {unreadable[0]}; repair or replace them")
    check_targets(train)


def are_unequal(labels: Sequence[int]) -> bool:
    """Check whether a run's classes are unequal: the largest has at least twice the images of the smallest.

    >>> are_unequal([0, 0, 1]), are_unequal([0, 0, 0, 1, 1])
    (True, False)
    """
    counts = Counter(labels).values()
    return bool(counts) and max(counts) >= UNEQUAL * min(counts)


def spell_counts(data: ImageDataset) -> str:
    """Write how unequal the classes of the training data are: each with its number of images, the largest first.

    Of many, the list has both ends.
    """
    return _list_ends([f"{data.class_names[label]} {count:,}" for label, count in Counter(data.labels).most_common()])


def _list_ends(words: Sequence[str]) -> str:
    """List names for a remark of the data check, such as the classes; of many, those at both ends."""
    left = len(words) - LISTED
    middle = [f"… {left} more …"] if left > 0 else []
    return ", ".join([*words[: LISTED // 2], *middle, *words[-(LISTED // 2) :]] if middle else words)


def find_copies(train: ImageDataset, test: ImageDataset) -> list[tuple[int, int]]:
    """Find copied files: test images that are training images byte for byte, as pairs (test, train).

    A file is read only if one of the other split has its size.
    """
    if len(train) + len(test) > FILES or not all(isinstance(data.image(0), str | Path) for data in (train, test)):
        return []
    sizes = [[_size(data.image(i)) for i in range(len(data))] for data in (train, test)]
    shared = set(sizes[0]) & set(sizes[1]) - {0}
    known = {_hash(train.image(j)): j for j, size in enumerate(sizes[0]) if size in shared}
    candidates = ((i, known.get(_hash(test.image(i)))) for i, size in enumerate(sizes[1]) if size in shared)
    return [(i, j) for i, j in candidates if j is not None]


def _size(image: object) -> int:
    """Return the bytes of an image's file, to find copies; 0 if it cannot be read, or is none."""
    try:
        return Path(image).stat().st_size if isinstance(image, str | Path) else 0
    except OSError:
        return 0


def _hash(image: object) -> bytes:
    """Hash an image's file, to find copies."""
    assert isinstance(image, str | Path)
    with Path(image).open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def typical_image(data: ImageDataset) -> tuple[int, int, bool]:
    """Check what the images of a run are like: median width and height of a few, and whether any has colours."""
    found = []
    for i in range(0, len(data), max(1, len(data) // SAMPLE)):
        try:
            found.append(read_image(data.image(i)))
        except ImageError:
            continue
    if not found:
        raise ValueError(f"none of the images of {data.name} can be read: check one with vitreous classify")
    colour = any(np.ptp(np.asarray(image.resize((32, 32))), axis=-1).mean() > 1 for image in found)  # red is not green
    return round(median(image.width for image in found)), round(median(image.height for image in found)), colour


def check_size(config: TrainConfig, model: Model, data: ImageDataset, log: Callable[[str], object]) -> None:
    """Check the size of a run's photographs: refuse to shrink them for a model of small images, unless asked to.

    A checkpoint that was trained at such a size is fine-tuned with a note.
    """
    height, width = model.card.preprocess.size
    grey = len(model.card.preprocess.mean) == 1
    if max(height, width) > THUMBNAIL_MODEL or (config.image_size is not None and not grey):
        return
    wide, high, colour = typical_image(data)
    if grey and colour:
        log("the images have colours, and the model takes grey ones: pass --channels 3 to keep them")
    if config.image_size is not None or min(wide, high) <= max(SHRINK * min(height, width), THUMBNAIL_MODEL):
        return
    shrunk = f"images of about {wide}×{high} px become {width}×{height} px"
    if config.pretrained:
        log(f"{shrunk}, the size of {config.model}: pass --image-size for more, or another --model")
        return
    raise ValueError(
        f"{shrunk} for {config.model}: leave recipe and model out to have them chosen, start from a trained model "
        f"(vitreous finetune --data {config.data}), or pass --image-size"
    )


def changed_data(before: str, now: str) -> str:
    """Name the data that is not what a run was first set up with, by two values of `data_hash`; empty if none.

    A checkpoint of an earlier version has the hash of the training images alone.

    >>> changed_data("12-34", "12-56"), changed_data("12-34", "56-78"), changed_data("12", "12-34")
    ('held-out images', 'training images and held-out images', '')
    """
    hashes = zip(("training images", "held-out images"), before.split("-"), now.split("-"), strict=False)
    return " and ".join(name for name, was, now_is in hashes if was != now_is)


def hash_data(data: ImageDataset | StreamedData) -> str:
    """Hash classes, labels, and the pixels of masks, to check later that a run's data is the same."""
    labels = spell_labels(data) if isinstance(data, ImageDataset) else [" ".join(map(str, data.labels))]
    if isinstance(data, ImageDataset) and data.mask is not None:
        labels += prefetch(partial(_hash_mask, data), range(len(data)))
    return digest([*data.class_names, *labels])[:16]


def _hash_mask(data: ImageDataset, i: int) -> str:
    """Hash the size and the pixels of one mask, to check later that a run's data is the same."""
    assert data.mask is not None
    mask = data.mask(i)
    return f"{mask.size} {hashlib.sha256(mask.tobytes()).hexdigest()}"
