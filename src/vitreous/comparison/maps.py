"""`compare_maps`: which heat map is true for this model? Run every method on the same images; find and read masks.

    maps-DATA/faithfulness/part-000000.parquet    scores and maps of every image, written as they are computed
    maps-DATA/segmentation/part-000000.parquet    the same for images with masks
    maps-DATA/maps.json, maps.md, maps.html       the tables, and a page with images where maps agree and disagree

Calling it again resumes an unfinished comparison; under torchrun the processes share the images.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image
from torch import Tensor

from vitreous.comparison.map_scores import Scorer
from vitreous.comparison.map_table import MapTable, as_markdown, map_tables, printed_tables
from vitreous.data.datasets import open_dataset
from vitreous.data.image_dataset import NOUNS
from vitreous.data.images import ImageError, read_image
from vitreous.data.masks import IGNORE, MaskValues, read_classes, read_values, view_mask
from vitreous.data.prefetch import prefetch
from vitreous.data.preprocess import Preprocess
from vitreous.data.sources.mask_folder import MaskFolder, find_mask_folders
from vitreous.inside.faithfulness import rank_correlation
from vitreous.inside.methods import choose_methods, patch_grid
from vitreous.models.token_layout import covered
from vitreous.pages.maps import MapExample, write_maps_page
from vitreous.predict.class_matching import match_dataset
from vitreous.predict.parts import PartsJob, fingerprint, write_parts
from vitreous.predict.tables import reason, table_schema
from vitreous.runtime.device import device_name, pick_device
from vitreous.runtime.distributed import this_rank
from vitreous.runtime.files import short_name, write_json, write_text
from vitreous.weights.load import Model, loaded

SANITY_EVERY = 5
"""Every how many images the maps are computed with fresh weights too."""
PART = 25
"""Images in a part: what a killed run has to repeat at most."""
EXAMPLES, DRAWN = 3, 6
"""Images of agreement and of disagreement on the page, and methods whose maps it shows."""
Progress = Callable[[str, int, int], object]
Row = dict[str, Any] | ImageError


@dataclass(frozen=True, repr=False)
class MapComparison:
    """The tables of a comparison of heat maps, and where it was written."""

    folder: Path
    table: MapTable
    page: Path
    ended: bool = False
    """Whether it was interrupted: then the tables are of the parts that were finished."""

    @property
    def markdown(self) -> str:
        """What comparing a model's heat maps has shown, as Markdown."""
        return as_markdown(self.table)

    @property
    def files(self) -> list[Path]:
        """What `compare_maps` wrote beside the parts."""
        return [self.page, *(self.folder / f"maps.{kind}" for kind in ("md", "json"))]

    def __repr__(self) -> str:
        return f"{self.markdown}\n\n{self.folder}"


def compare_maps(
    data: str | Path | None = None,
    model: Model | str | Path | None = None,
    output: str | Path | None = None,
    *,
    masks: str | Path | None = None,
    methods: Sequence[str] = (),
    images: int | None = None,
    steps: int = 28,
    greedy: int = 32,
    device: str = "auto",
    progress: Progress = lambda what, done, total: None,
) -> MapComparison | None:
    """Compare the heat maps of one model: is each method's faithful, is it on the object, and what does it cost?

    All methods run on the same images.

    Args:
        data: Images whose patches are removed: a folder with a sub-folder for each class, or a dataset's name.
        model: A model or its name; by default the packaged ViT-Ti/16.
        output: A folder; by default `studies/maps-DATA`. Or the page, FILE.html: the folder is then FILE beside it.
        masks: A folder with `images/` and `masks/`, for pixel accuracy, mAP, mIoU and pointing.
        methods: Names of `METHODS`; by default all that the model allows.
        images: At most this many images of each, spread over all.
        steps: Steps of the deletion and insertion curves.
        greedy: Images for which a nearly best order of patches is searched; 0 for none.
        device: auto, cpu, cuda or cuda:N.
        progress: Gets what is measured, how many images are done, and of how many.

    Returns None in all processes but the first.
    """
    if data is None and masks is None:
        raise ValueError("name the images to measure on: data=FOLDER, or masks=FOLDER with images/ and masks/")
    network = loaded(model)
    if network.card.family == "timm":
        raise ValueError("heat maps of timm classifiers are not compared: choose a ViT or a ResNet")
    if network.card.head != "classifier":
        raise ValueError("heat maps explain a class, and this model has no classifier: choose one that has")
    if network.card.task != "classify":
        raise ValueError(
            f"heat maps are measured by a class's probability, and this model answers with {NOUNS[network.card.task]}: "
            "choose one that has a class for each image"
        )
    network = network.to(pick_device(device)).eval()
    chosen = choose_methods(tuple(methods), network)
    scorer = Scorer(network, chosen, steps)
    folder = Path(output or Path("studies") / f"maps-{short_name(str(data or masks))}").expanduser()
    page, folder = (folder, folder.with_suffix("")) if folder.suffix == ".html" else (folder / "maps.html", folder)
    about = {"methods": ", ".join(chosen), "steps": str(steps), "greedy": str(greedy)}
    jobs: dict[str, tuple[list[str], PartsJob[Row]]] = {}
    listed: dict[str, tuple[Any, int]] = {}
    if data is not None:
        found = open_dataset(data)
        if found.task != "classify":
            raise ValueError(
                f"heat maps are measured on images with a class each, and {data} has {NOUNS[found.task]}: name a "
                "folder with a sub-folder for each class"
            )
        found = found if images is None else found.spread(images)
        classes = match_dataset(found, network)
        names = [found.describe(i) for i in range(len(found))]
        if len(set(names)) < len(names):
            names = [f"{name} #{i}" for i, name in enumerate(names)]
        listed = {name: (found.image(i), classes[found.labels[i]]) for i, name in enumerate(names)}
        jobs["faithfulness"] = names, _faithfulness_job(scorer, listed, greedy, about)
    if masks is not None:
        pairs, values = find_masks(Path(masks).expanduser(), images), object_values(Path(masks).expanduser())
        jobs["segmentation"] = list(pairs), _segmentation_job(scorer, pairs, values, about)
    ended = False
    try:
        whole = [_write(folder / what, names, job, what, progress) for what, (names, job) in jobs.items()]
        if not all(whole):
            return None
    except KeyboardInterrupt:  # the tables of the parts so far are made all the same
        ended = True
        if not this_rank().first or not any(folder.glob("*/part-*.parquet")):
            raise
    read = {what: read_parts(folder / what) for what in jobs if any((folder / what).glob("part-*.parquet"))}
    context = {
        "model": network.card.name,
        "data": {"faithfulness": short_name(str(data)), "segmentation": short_name(str(masks))},
        "device": device_name(next(network.parameters()).device),
        "torch": torch.__version__,
        "steps": steps,
        "grid": list(patch_grid(network, torch.empty(1, 1, *network.card.preprocess.size))),
        "methods": list(chosen),
    }
    table = map_tables(read, chosen, scorer.operators, context)
    write_json(folder / "maps.json", table)
    write_text(folder / "maps.md", as_markdown(table) + "\n")
    agree, disagree = _examples(read.get("faithfulness"), listed, network, table) if listed else ([], [])
    title = f"Heat maps of {short_name(network.card.name)}"
    again = {"--data": data, "--masks": masks, "--images": images}
    words = [f"{flag} {short_name(str(value))}" for flag, value in again.items() if value is not None]
    command = " ".join(["vitreous compare", short_name(network.card.name), "--maps", *words])
    write_maps_page(page, printed_tables(table), title=title, agree=agree, disagree=disagree, command=command)
    return MapComparison(folder, table, page, ended)


def _write(folder: Path, names: Sequence[str], job: PartsJob[Row], what: str, progress: Progress) -> bool:
    """Write this process's parts of `compare_maps`; return whether it is the first process and all parts are there."""
    report = write_parts(folder, names, job, PART, progress=lambda done, total, existing: progress(what, done, total))
    return report is not None and not report.left


def read_parts(folder: Path) -> dict[str, np.ndarray]:
    """Read the parts that a comparison of maps wrote, without images left out: name of a measurement → array.

    Left out are those that cannot be read and those without scores; a `ValueError` says why if they are all.
    """
    parts = [pyarrow.parquet.read_table(path) for path in sorted(folder.glob("part-*.parquet"))]
    table = pyarrow.concat_tables(parts, promote_options="default")  # parts of an earlier version may lack a column
    errors = table.filter(pyarrow.compute.is_valid(table["error"]))
    if table.num_rows and errors.num_rows == table.num_rows:
        first = ImageError(*(errors[name][0].as_py() for name in ("image", "error")))
        raise ValueError(f"none of {table.num_rows} images has a score of {folder.name}: {first}")
    table = table.filter(pyarrow.compute.is_null(table["error"]))
    return {name: _array(table[name]) for name in table.column_names if name != "error"}


def _array(column: Any) -> np.ndarray:
    values = column.to_pylist()
    width = next((len(value) for value in values if isinstance(value, list)), None)
    if width is None:
        return np.array(values, dtype=object if isinstance(values[0], str) else float)  # None becomes nan
    return np.array([[np.nan] * width if value is None else value for value in values], dtype=float)


def _examples(
    columns: Mapping[str, np.ndarray] | None, listed: Mapping[str, tuple[Any, int]], model: Model, table: MapTable
) -> tuple[list[MapExample], list[MapExample]]:
    """Choose the images that a comparison of maps shows: where the best maps agree most, and where they agree least."""
    if columns is None or not len(columns["target"]):
        return [], []
    methods = table["methods"]
    best = [row["name"] for row in table["faithfulness"]["methods"] if row["sanity"] is not None][:DRAWN]
    chosen = [methods.index(name) for name in best]
    values = torch.from_numpy(columns["maps"]).unflatten(1, (len(methods), *table["grid"]))[:, chosen]  # [images m r c]
    pairs = torch.combinations(torch.arange(len(chosen)))
    if not len(pairs):
        return [], []
    alike = rank_correlation(values[:, pairs[:, 0]], values[:, pairs[:, 1]]).mean(dim=1)
    order = alike.argsort(descending=True).tolist()
    count = min(EXAMPLES, len(order) // 2)

    def example(number: int) -> MapExample:
        name, target = str(columns["image"][number]), int(columns["target"][number])
        pixels = np.asarray(model.card.preprocess.view(read_image(listed[name][0])).convert("RGB"))
        height, width = covered(model, pixels.shape)
        answer = f"{model.card.label(target)} {100 * columns['probability'][number]:.0f} %"
        maps = dict(zip(best, values[number].numpy(), strict=True))
        return MapExample(short_name(name), answer, pixels[:height, :width], maps, float(alike[number]))

    known = [number for number in order if str(columns["image"][number]) in listed]
    return [example(number) for number in known[:count]], [example(number) for number in known[::-1][:count]]


# --- jobs -------------------------------------------------------------------------------------------------------------


def _faithfulness_job(
    scorer: Scorer, listed: Mapping[str, tuple[Any, int]], greedy: int, about: Mapping[str, str]
) -> PartsJob[Row]:
    numbers = {name: i for i, name in enumerate(listed)}
    every = max(1, len(listed) // greedy) if greedy else 0

    def row(name: str, x: Tensor) -> Row:
        target, probability = _answer(scorer.model, x)
        maps, seconds = scorer.maps(x, target)
        number = numbers[name]
        fresh = scorer.fresh(x, target) if number % SANITY_EVERY == 0 else None
        if broken := _not_finite(scorer, maps):
            return ImageError(name, broken)
        if fresh is not None and (broken := _not_finite(scorer, fresh)):
            return ImageError(name, f"with fresh weights, {broken}")
        return {
            "target": target,
            "probability": probability,
            "correct": target == listed[name][1],
            "seconds": seconds,
            **scorer.faithfulness(x, maps, target),
            "sanity": None if fresh is None else rank_correlation(maps, fresh).tolist(),
            "greedy": scorer.bound(x, target) if every and number % every == 0 and number // every < greedy else None,
            "maps": maps.flatten().tolist(),
            "fresh_maps": None if fresh is None else fresh.flatten().tolist(),
        }

    lists = ["seconds", "road", "saco", "sanity", "greedy", "maps", "fresh_maps"]
    lists += [f"{way}_{operator}" for operator in scorer.operators for way in ("deletion", "insertion")]
    return _job("compare --maps", scorer, {name: image for name, (image, _) in listed.items()}, row, lists, about)


def _segmentation_job(
    scorer: Scorer, pairs: Mapping[str, tuple[Path, Path]], values: MaskValues | None, about: Mapping[str, str]
) -> PartsJob[Row]:
    model = scorer.model

    def row(name: str, x: Tensor) -> Row:
        mask = read_mask(pairs[name][1], model.card.preprocess, values)
        if not (scorer.reached(mask) >= 0).any():
            return ImageError(name, "all pixels of its mask that the model sees are ignored")
        target, probability = _answer(model, x)
        maps, seconds = scorer.maps(x, target)
        if broken := _not_finite(scorer, maps):
            return ImageError(name, broken)
        return {
            "target": target,
            "probability": probability,
            "correct": _is_correct(name, target, model),
            "seconds": seconds,
            **scorer.segmentation(x, maps, mask),
        }

    scores = ("accuracy", "precision", "intersections", "unions", "pointing")
    lists = ["seconds", *(name + end for end in ("", "_filled") for name in scores)]
    about = {"methods": about["methods"]} | ({} if values is None else {"values": values.spell()})
    return _job(
        "compare --maps --masks", scorer, {name: image for name, (image, _) in pairs.items()}, row, lists, about
    )


def _job(
    command: str,
    scorer: Scorer,
    images: Mapping[str, Any],
    row: Callable[[str, Tensor], Row],
    lists: Sequence[str],
    about: Mapping[str, str],
) -> PartsJob[Row]:
    model, like = scorer.model, next(scorer.model.parameters())
    fields = {"target": pyarrow.int32(), "probability": pyarrow.float32(), "correct": pyarrow.bool_()}
    fields |= dict.fromkeys(lists, pyarrow.list_(pyarrow.float32()))

    def decode(name: str) -> tuple[str, Tensor | ImageError]:
        try:
            return name, model.card.preprocess(read_image(images[name]))
        except ImageError as error:
            return name, error

    def rows_of(names: Iterable[str]) -> Iterator[Row]:
        with closing(prefetch(decode, names, waiting=8)) as decoded:
            for name, pixels in decoded:
                yield pixels if isinstance(pixels, ImageError) else row(name, pixels[None].to(like))

    def columns(rows: list[Row]) -> dict[str, Any]:
        found = {name: [None if isinstance(each, ImageError) else each[name] for each in rows] for name in fields}
        return found | {"error": [reason(each) for each in rows]}

    known = {"command": command, "model": model.card.name, "fingerprint": fingerprint(model), "precision": "fp32"}
    return PartsJob({**known, **about}, table_schema(fields, model.card.name), rows_of, columns)


def _not_finite(scorer: Scorer, maps: Tensor) -> str:
    """Say in `compare_maps` which methods' maps, `[m rows columns]`, have NaN or infinite values; "" if none has."""
    broken = [name for name, each in zip(scorer.methods, maps, strict=True) if not each.isfinite().all()]
    return f"NaN or infinite values in the map of {', '.join(broken)}" if broken else ""


@torch.no_grad()
def _answer(model: Model, x: Tensor) -> tuple[int, float]:
    probability, target = model(x).float().softmax(dim=-1)[0].max(dim=-1)
    return int(target), float(probability)


# --- masks ------------------------------------------------------------------------------------------------------------


def find_masks(folder: Path, limit: int | None = None) -> dict[str, tuple[Path, Path]]:
    """Find the images of a folder for `compare_maps`, and their masks of the same stem: stem → image and mask."""
    if not (parts := find_mask_folders(folder)):
        raise FileNotFoundError(f"{folder} has no images/ and masks/: expected both, with files of the same names")
    found = {}
    for part, (images, _) in parts.items():
        for image, mask in MaskFolder(folder, parts).pairs(part):
            stem = image.relative_to(images).with_suffix("").as_posix()
            found[stem if part is None else f"{part}/{stem}"] = image, mask
    keys = list(found)
    keys = keys if limit is None or limit >= len(keys) else [keys[i * len(keys) // limit] for i in range(limit)]
    return {key: found[key] for key in keys}


def object_values(folder: Path) -> MaskValues | None:
    """Read for `compare_maps` what a folder's classes.json says of the masks' values: 0 background, 1 object.

    The object is all but the class `background`, which one of the names has to be. None if there is no such file.
    """
    if (file := MaskFolder(folder, find_mask_folders(folder)).class_file) is None:
        return None
    values = read_classes(file)
    names = [name.lower() for name in values.class_names]
    if "background" not in names:
        raise ValueError(f"{file} has {values.spell()}: call one of them background, the others are the object")
    kinds = [int(name != "background") for name in names]
    index = {value: i if i == IGNORE else kinds[i] for value, i in values.index.items()}
    return replace(values, class_names=("background", "object"), index=index)


def read_mask(path: Path, preprocess: Preprocess, values: MaskValues | None = None) -> Tensor:
    """Read what the model sees of an image's mask for `compare_maps`: `[H W]`, 1 object, 0 background, -1 neither.

    `values` are those of `object_values`. Without them 0 is the background and any other value the object, or the mask
    is a trimap: 1 object, 2 background, 3 border.
    """
    if values is None:
        found = read_values(path)
        trimap = set(np.unique(found).tolist()) <= {1, 2, 3}
        code = np.select([found == 1, found == 2], [1, 0], IGNORE) if trimap else found > 0
        mask = Image.fromarray(code.astype(np.uint8))
    else:
        mask = values.read(path)
    seen = np.asarray(view_mask(mask, preprocess)).astype(np.int64)
    return torch.from_numpy(np.where(seen == IGNORE, -1, seen))


def _is_correct(name: str, target: int, model: Model) -> bool | None:
    """Return in `compare_maps` whether the answer is the class in a file's name, such as `pug_12`; None if unknown.

    The words before a number have to be all those of a class name, or of one of its synonyms between commas: a file
    `train_0001` does not show a bullet train.
    """
    words = _words(re.sub(r"(^|[\W_]+)\d+$", "", name.rpartition("/")[2]))
    labels = (model.card.label(i).split(",") for i in range(model.config.classes))
    named = [i for i, synonyms in enumerate(labels) if words in map(_words, synonyms)]
    return target in named if words and named else None


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.lower())
