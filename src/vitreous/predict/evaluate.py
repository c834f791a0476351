"""`evaluate` of the Python API: the figures of a model's task on images that it was not trained on."""

import json
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from vitreous.data.dataset_source import DatasetSource
from vitreous.data.datasets import DATASETS, EXPECTED, find_source
from vitreous.data.finding import Images, open_images
from vitreous.data.image_dataset import NOUNS, ImageDataset, count_names, list_some
from vitreous.data.images import ImageError
from vitreous.data.preprocess import Fit, Preprocess
from vitreous.data.splits import open_split
from vitreous.models.last_block import Compute
from vitreous.predict.class_matching import match_classes, match_dataset, note_indices, told_apart
from vitreous.predict.evaluation_result import Evaluation, TaskEvaluation
from vitreous.predict.mask_scores import split_counts
from vitreous.predict.pipeline import (
    check_finite,
    choose_compute,
    compute_batches,
    decode_batches,
    lanes_of,
    plain_compute,
    task_of,
)
from vitreous.predict.scores import EACH, SCORES, f1_scores
from vitreous.predict.words import PLAIN, named_by_folders, with_folder_names
from vitreous.runtime.distributed import Rank, span
from vitreous.weights.card import Card
from vitreous.weights.load import Model, loaded
from vitreous.weights.runs import is_run

ALONE = Rank()
CHOSEN_HERE = "the thresholds of the labels were chosen on these images, so F1 at them is a little too high"


@dataclass
class _Tally:
    """The outcome of each evaluated image, in the dataset's order; every figure follows from it."""

    rows: list[Tensor] = field(default_factory=list)
    """What `SCORES` counts of each image, a batch each: `[b m]`."""
    targets: list[Tensor] = field(default_factory=list)
    """Classes of the images, a batch each, `[b]`; or their labels or numbers `[b k]`; none of masks."""
    loss: list[float] = field(default_factory=list)
    """Of classes: the cross-entropy of each image."""
    problems: list[ImageError] = field(default_factory=list)

    def add(self, task: str, outputs: Tensor, targets: Tensor) -> None:
        """Add the outcome of a batch to the tally of `evaluate`: outputs and targets, which masks need not keep."""
        self.rows.append(SCORES[task].rows(outputs, targets))
        self.targets += [] if task == "segment" else [targets]
        if task == "classify":
            self.loss += torch.nn.functional.cross_entropy(outputs, targets, reduction="none").tolist()


def evaluate(
    data: ImageDataset | Images,
    model: Model | str | None = None,
    *,
    labels: Sequence[SupportsIndex | str] | None = None,
    limit: int | None = None,
    batch_size: int = 16,
    device: str = "auto",
    precision: str = "fp32",
    fast: bool = False,
    fit: Fit | None = None,
    preprocess: Preprocess | None = None,
    all_images: bool = False,
    templates: Sequence[str] = PLAIN,
    rank: Rank = ALONE,
    compute: Compute | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Evaluation | TaskEvaluation:
    """Measure a model's predictions on labelled images: accuracy and calibration, or what fits its task.

    Several labels are measured by mean average precision and F1, numbers by R² and their errors, masks by IoU, pixel
    accuracy and the F of boundaries; the data must have such targets, by the model's names.

    `data` is a dataset, or a name, folder or parquet file for `open_dataset` (its test split); or images, as `classify`
    takes them, with their `labels`. The dataset's classes are matched to the model's by name, WordNet id or index.
    `limit` takes so many images, evenly. `fit` crops, squashes or pads images of other sides than the model's, and
    `preprocess` replaces all of the model's own. Unreadable images are counted apart. Of the folder that the model was
    trained on, the images that were held out then are measured, unless `all_images`.

    A CLIP or SigLIP gets the dataset's class names as words (`n02123045_tabby_cat` is "tabby cat"); `templates` are the
    sentences around them, such as `["a photo of a {}"]`, or `ENSEMBLE` of `vitreous.predict.words`.

    Inside `with cpu_group() as rank`, each process measures its span of the data, and all return the figures of the
    whole. `compute` returns logits of pixels in place of the plain model, such as what `optimize` returns.
    `progress` gets how many of this process's images are done, and of how many.

    >>> from vitreous.data.sample_photos import samples
    >>> result = evaluate([samples()["chelsea"]], "packaged:cifar10", labels=[3], device="cpu")
    >>> result.images, result.confusion.shape[0] == len(result.class_names)
    (1, True)
    """
    model, note = loaded(model), ""
    task = task_of(model)
    if labels is None and isinstance(data, (str, Path)):
        data, note = open_unseen(data, model, all_images=all_images)
    data = _labelled(data, labels, model)
    data = data if limit is None else data.spread(limit)
    if task != data.task:
        raise _other_task(model.card, data.name, data.task)
    if compute is None:
        model = with_folder_names(model, data.class_names, templates)
    card, classes = model.card, model.config.classes
    if card.head != "classifier":
        raise ValueError(f"{card.name} has no classifier: use --probe knn or --probe linear")
    if task != "classify":
        data = _with_names(data, card, classes)
    else:
        own_names = named_by_folders(model, data.class_names)
        indices = torch.tensor(list(range(classes)) if own_names else match_dataset(data, model))
        if labels is None and not own_names:  # labels of images are known to be indices
            note = "; ".join(filter(None, (note, note_indices(data, model))))
    if compute is None:
        compute = choose_compute(model, fast=fast, batch_size=batch_size, device=device, precision=precision)
    run = compute or plain_compute(model, "logits", device, precision)
    view = (preprocess or card.preprocess).with_fit(fit)
    own_statistics = (view.mean, view.std) == (card.preprocess.mean, card.preprocess.std)

    own = data if rank.world_size == 1 else data.take(span(len(data), rank))
    tally, done = _Tally(), 0
    batches = decode_batches(own, view, batch_size, tally.problems)
    if not own_statistics:  # another mean and std are not part of the model
        batches = ((view.normalise(pixels), part) for pixels, part in batches)
    for part, outputs in compute_batches(run, batches, lanes=lanes_of(run)):
        check_finite(outputs, card.name)
        tally.add(task, outputs, indices[part] if task == "classify" else part)
        done += len(part)
        progress(done + len(tally.problems), len(own))
    tally, *others = rank.gather(tally)
    for other in others:  # the images of other ranks
        for each in fields(tally):
            getattr(tally, each.name).extend(getattr(other, each.name))
    if not tally.rows:
        raise tally.problems[0] if tally.problems else ValueError(f"{data.name} holds no images")
    names = tuple(card.label(i) for i in range(classes))
    return _sum_up(tally, names, note) if task == "classify" else _sum_up_task(tally, names, card, note)


def _sum_up(tally: _Tally, names: tuple[str, ...], note: str) -> Evaluation:
    """Finish `evaluate` for a model of classes: turn the tally of all batches into its `Evaluation`."""
    from torchmetrics.functional.classification import binary_calibration_error, multiclass_confusion_matrix

    label, rows = torch.cat(tally.targets), torch.cat(tally.rows)
    count, predicted, confidence, in_top5 = len(rows), rows[:, 0].long(), rows[:, 1], rows[:, 3]
    correct = label == predicted
    # confidence in the top class against its correctness: a problem of two classes
    calibration = binary_calibration_error(confidence.clamp(0, 1), correct.int(), n_bins=15)
    return Evaluation(
        top1=correct.sum().item() / count,
        top5=in_top5.sum().item() / count if len(names) > 5 else None,
        images=count,
        loss=sum(tally.loss) / count,
        calibration_error=calibration.item(),
        class_names=names,
        confusion=multiclass_confusion_matrix(predicted, label, len(names)),
        correct=correct.tolist(),
        problems=tally.problems,
        note=note,
    )


def _sum_up_task(tally: _Tally, names: tuple[str, ...], card: Card, note: str) -> TaskEvaluation:
    """Finish `evaluate` for labels, numbers or masks: turn the tally of all batches into its `TaskEvaluation`."""
    task, rows = card.task, torch.cat(tally.rows)
    targets = torch.cat(tally.targets).numpy() if tally.targets else np.zeros((0, 0), np.float32)
    if task == "multilabel" and not (targets > 0.5).any():
        raise ValueError("no image has one of the labels: there is nothing to measure")
    if task == "segment" and not split_counts(rows)[2].any():
        raise ValueError("the masks have no pixel of a class: there is nothing to measure")
    found = zip(told_apart(names), EACH[task](rows, targets), strict=True)
    each = {name: own for name, own in found if own is not None}
    figures = SCORES[task].figures(rows, targets)
    if task == "multilabel" and card.thresholds is not None:
        scores = [f1 for f1 in f1_scores(rows, targets, card.thresholds) if f1 is not None]
        figures["f1_at_thresholds"] = sum(scores) / len(scores)
    if task == "regress":  # several numbers have an error each, in its own unit
        figures = {name: figures[name] for name in ("r2",) if name in figures}
        figures |= next(iter(each.values())) if len(each) == 1 else {}
    return TaskEvaluation(len(rows), names, task, figures, each, problems=tally.problems, note=note)


def _other_task(card: Card, name: str | Path, task: str) -> ValueError:
    """Make the error that data to evaluate on are of another task than the model."""
    return ValueError(
        f"{card.name} answers with {NOUNS[card.task]}, and {name} has {NOUNS[task]}: expected {EXPECTED[card.task]}"
    )


def _with_names(data: ImageDataset, card: Card, classes: int) -> ImageDataset:
    """Prepare data to evaluate predictions by: its labels, numbers or pixel classes are ordered as the model's."""
    if card.class_names is None:
        if len(data.class_names) != classes:
            raise ValueError(
                f"{card.name} answers with {classes} {NOUNS[card.task]}, {data.name} has {count_names(data)}"
            )
        return data
    try:
        return data.with_classes(card.class_names)
    except ValueError as error:
        raise ValueError(f"{error}; {card.name} knows {list_some(card.class_names)}") from error


def open_unseen(
    name: str | Path, model: Model, root: Path | None = None, *, all_images: bool = False
) -> tuple[ImageDataset, str]:
    """Open images that a model has not seen, to evaluate its predictions on, with a remark.

    They are test images, or those its training held out.
    """
    source = _source(name, root, model.card)
    data = source.open("test")
    used = training_config(model)
    if used is None or used.get("stream"):
        return data, ""
    doubt = f"the model was trained on {used.get('data')}: if it learned from these images, this is too high"
    # images without splits, of some of the training classes, may be some of the training images
    overlaps = source.whole is not None and not set(data.class_names).isdisjoint(model.card.class_names or ())
    own_data = used.get("data") is not None and str(used["data"]) not in DATASETS
    partial_doubt = doubt if overlaps and own_data else ""
    try:
        task = None if model.card.task == "classify" else model.card.task
        train, held_out = open_split(name, root, used["held_out"], train=used["train_split"], task=task)
    except (ValueError, KeyError, OSError):  # other splits than the training had, or a record of something else
        return data, partial_doubt
    if train.class_names != model.card.class_names:  # other data, or a part
        return data, partial_doubt
    same = _is_same_data(name, used, len(train), model)
    learned = _count_learned(used, len(train), model)
    chosen = same and model.card.thresholds is not None and not used.get("validation")  # else on training images
    if len(held_out) == len(data):  # a test split
        return data, CHOSEN_HERE if chosen else ""
    if not same:
        return data, doubt
    if all_images:
        return data, f"the model learned from {learned:,} of these {len(data):,} images, so this is too high"
    note = f"the model learned from {learned:,} of these {len(data):,} images: measured on the {len(held_out):,} "
    return held_out, f"{note}that were held out (--all for all){f'; {CHOSEN_HERE}' * chosen}"


def _source(name: str | Path, root: Path | None, card: Card) -> DatasetSource:
    """Find the data to evaluate on; data that cannot serve the model's task is an error. A table may serve several."""
    task = None if card.task == "classify" else card.task
    try:
        source = find_source(name, root, task)
    except ValueError as error:
        guessed = find_source(name, root).task
        if guessed == card.task:
            raise
        raise _other_task(card, name, guessed) from error
    if source.task != card.task:
        raise _other_task(card, name, source.task)
    return source


def _is_same_data(name: str | Path, used: dict[str, Any], train_images: int, model: Model) -> bool:
    """Return whether the data to evaluate on is what the model learned from: by path, or by name if moved."""
    before, now = (os.path.realpath(str(path)) for path in (used.get("data"), name))
    recorded = (model.card.training or {}).get("training_images")
    same_name = os.path.basename(before) == os.path.basename(now)
    return before == now or (same_name and _without_validation(used, train_images) == recorded)


def _without_validation(used: dict[str, Any], train_images: int) -> int:
    """Return how many train images a model may know whose predictions are evaluated: all but its validation share."""
    share = used.get("validation") or 0
    return train_images - (max(1, round(share * train_images)) if share else 0)


def _count_learned(used: dict[str, Any], train_images: int, model: Model) -> int:
    """Return how many images the model learned from whose predictions are evaluated.

    Its record leaves out unreadable ones.
    """
    most = _without_validation(used, train_images)
    recorded = (model.card.training or {}).get("training_images")
    return min(recorded, most) if isinstance(recorded, int) else most


def training_config(model: Model) -> dict[str, Any] | None:
    """Return the settings that a model was trained with, to evaluate predictions on images it has not seen.

    They are in its record, or in its run's config.
    """
    record = model.card.training
    if isinstance(record, dict) and isinstance(record.get("config"), dict):
        return dict(record["config"])
    for file in model.card.files[:1]:
        run = Path(file).absolute().parent.parent
        if is_run(run):
            try:
                found = json.loads((run / "config.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return None
            return found if isinstance(found, dict) else None
    return None


def _labelled(data: ImageDataset | Images, labels: Sequence[SupportsIndex | str] | None, model: Model) -> ImageDataset:
    """Open `data` for `evaluate` as a dataset; images come with labels, by class index or name.

    A number is an index of the model's classes, also where these are called 1 to 10. A text of digits may be either.
    """
    if isinstance(data, ImageDataset):
        return data
    if labels is None:
        raise ValueError("images need labels to be evaluated on: pass labels, or a dataset's name or folder")
    images, _ = open_images(data)
    if len(images) != len(labels):
        raise ValueError(f"expected a label for each image, got {len(images)} images and {len(labels)} labels")
    if model.card.head == "classifier" and not all(isinstance(label, str) for label in labels):
        known, classes = model.card.class_names, model.config.classes
        return ImageDataset(
            "images",
            known or tuple(map(str, range(classes))),
            tuple(
                match_classes([label], known, classes)[0] if isinstance(label, str) else _class_index(label, classes)
                for label in labels
            ),
            images.__getitem__,
        )
    words = [str(label) for label in labels]
    names = sorted(set(words))
    return ImageDataset("images", tuple(names), tuple(names.index(word) for word in words), images.__getitem__)


def _class_index(label: SupportsIndex, classes: int) -> int:
    """Check a label that `evaluate` was given as the index of a class."""
    try:
        index = operator.index(label)
    except TypeError:
        raise ValueError(f"a label is the index of a class or its name, got {label!r:.60}") from None
    if not 0 <= index < classes:
        raise ValueError(f"{index} is no class index: the model has classes 0 to {classes - 1}")
    return index
