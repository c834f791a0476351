"""`vitreous models` and `vitreous datasets`: what there is."""

from __future__ import annotations


def models(search: str = "") -> None:
    """List the models that are known by name, with their sizes.

    Args:
        search: Only names that contain this.
    """
    import torch
    from rich.console import Console
    from rich.table import Table

    from vitreous.models.resnet import DEPTHS
    from vitreous.models.variants import VARIANTS
    from vitreous.models.vit import ViT

    table = Table(box=None, pad_edge=False)
    for name in ("name", "parameters", "image", "patch", "width", "depth", "heads"):
        table.add_column(name, justify="left" if name == "name" else "right")
    for name, config in VARIANTS.items():
        if search in name:
            with torch.device("meta"):  # counted, not allocated
                count = sum(p.numel() for p in ViT(config).parameters())
            numbers = (config.size[0], config.patch[0], config.width, config.depth, config.heads)
            table.add_row(name, f"{count:,}", *(str(number) for number in numbers))
    for depth in DEPTHS:
        if search in (name := f"resnet{depth}"):
            table.add_row(name, "", "any", "", "", str(depth), "")
    Console(highlight=False).print(table)


def datasets() -> None:
    """List the data sets that are known by name."""
    from vitreous.data.datasets import DATASETS

    for name, build in DATASETS.items():
        print(f"{name:<12} {(build.__doc__ or '').splitlines()[0]}")
    print("\nor a folder with a sub-folder for each class, with or without train/ and test/ (or val/) above them")
