"""`vitreous models`, `datasets`, `recipes` and `views`: list what is known by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from vitreous.cli.console import print_json
from vitreous.cli.options import Switch, optional

COLUMNS = ("name", "parameters", "image_size", "patch_size", "width", "depth", "heads")


def models(search: Annotated[str, optional("TEXT")] = "", json: Switch = False) -> None:
    """List the models known by name, with their sizes.

    Args:
        search: Only names that contain this.
        json: Print JSON.
    """
    import torch

    from vitreous.models.resnet import DEPTHS, ResNet, resnet_config
    from vitreous.models.variants import VARIANTS
    from vitreous.models.vit import ViT

    rows: list[tuple[Any, ...]] = []
    for name, config in VARIANTS.items():
        if search in name:
            with torch.device("meta"):  # counted, not allocated
                count = sum(p.numel() for p in ViT(config).parameters())
            rows.append((name, count, config.size[0], config.patch[0], config.width, config.depth, config.heads))
    for name in (f"resnet{depth}{stem}" for stem in ("", "_small") for depth in DEPTHS):
        if search in name and (shape := resnet_config(name)) is not None:
            with torch.device("meta"):
                count = sum(p.numel() for p in ResNet(shape).parameters())
            rows.append((name, count, None, None, None, shape.depth, None))
    if not rows:
        raise ValueError(f"no model's name contains {search!r}: `vitreous models` lists all")
    if json:
        print_json([dict(zip(COLUMNS, row, strict=True)) for row in rows])
        return
    line = "{:<44}{:>14}{:>12}{:>12}{:>8}{:>8}{:>8}"
    print(line.format(*(column.replace("_", " ") for column in COLUMNS)))
    for name, count, image, *others in rows:
        print(line.format(name, f"{count:,}", image or "any", *("" if value is None else value for value in others)))


def datasets(
    json: Switch = False,
    show: Annotated[str | None, optional("NAME|FOLDER")] = None,
    output: Annotated[Path | None, optional("FILE", "-o")] = None,
) -> None:
    """List the datasets known by name, and what else --data takes; or show some images of each class of one.

    Args:
        json: Print JSON.
        show: Draw images of this dataset's test split, a row a class, into a file.
        output: That file: .png, .svg or .pdf; by default NAME.png.
    """
    from vitreous.data.datasets import DATASETS

    if show is not None:
        _show_dataset(show, output)
        return

    known = {name: (build.__doc__ or "").splitlines()[0] for name, build in DATASETS.items()}
    if json:
        print_json([{"name": name, "about": about} for name, about in known.items()])
        return
    for name, about in known.items():
        print(f"{name:<12} {about}")
    print("\nor a folder with a sub-folder for each class, with or without train/ and test/ (or val/) above them,")
    print("or a .csv file with columns image and label (and split, if there is one),")
    print("or such a table with several labels for each image (cat;outdoor), or with columns of numbers,")
    print("or a folder with images/ and masks/, a mask for each image,")
    print("or .parquet files with a column of images and one of classes (a file, a 'pattern*.parquet', a folder),")
    print("or a dataset on the Hugging Face Hub: org/name, hf:name or org/name:config (needs vitreous[hub])")


def _show_dataset(name: str, output: Path | None) -> None:
    """Write the figure of `vitreous datasets --show`."""
    from vitreous.data.datasets import open_dataset
    from vitreous.figures.dataset_samples import draw_dataset
    from vitreous.figures.style import encode
    from vitreous.runtime.files import write_atomic

    target = output or Path(f"{Path(name).name}.png")
    formats: dict[str, Literal["png", "svg", "pdf"]] = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
    if (format := formats.get(target.suffix.lower())) is None:
        raise ValueError(f"the file must end in .png, .svg or .pdf, got {str(target)!r}")
    dataset = open_dataset(name)
    figure, many = draw_dataset(dataset, name)
    write_atomic(target, lambda path: path.write_bytes(encode(figure, format)))
    print(f"wrote {target} ({many}, {len(dataset):,} images)")


def recipes(json: Switch = False) -> None:
    """List the recipes, with the result of each and its hardware.

    Args:
        json: Print JSON, with every setting.
    """
    from vitreous.training.recipes import RECIPES

    if json:
        print_json(
            [
                {"name": name, "about": r.about, "expect": r.expect, "make": r.make, "config": r.config.to_dict()}
                for name, r in RECIPES.items()
            ]
        )
        return
    width = max(len(name) for name in RECIPES) + 2
    for name, recipe in RECIPES.items():
        print(f"{name:<{width}}{recipe.about}")
        print(f"{'':<{width}}{recipe.expect}")
        if recipe.make:
            print(f"{'':<{width}}its data for --data: {recipe.make}")


def views(json: Switch = False) -> None:
    """List the views that `explain` can draw.

    Args:
        json: Print JSON.
    """
    from vitreous.views.registry import VIEWS

    if json:
        print_json([{"name": name, "title": view.title, "slow": view.slow} for name, view in VIEWS.items()])
        return
    width = max(len(name) for name in VIEWS) + 2
    for name, view in VIEWS.items():
        print(f"{name:<{width}}{view.title}{' (slow: only when asked for by name)' if view.slow else ''}")
