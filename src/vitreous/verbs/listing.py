"""`vitreous models` and `vitreous datasets`: what there is."""

from __future__ import annotations


def models(search: str = "") -> None:
    """List the models that are known by name, with their sizes.

    Args:
        search: Only names that contain this.
    """
    import torch

    from vitreous.models.resnet import DEPTHS, ResNet, resnet_config
    from vitreous.models.variants import VARIANTS
    from vitreous.models.vit import ViT

    rows: list[tuple[object, ...]] = []
    for name, config in VARIANTS.items():
        if search in name:
            with torch.device("meta"):  # counted, not allocated
                count = sum(p.numel() for p in ViT(config).parameters())
            rows.append((name, f"{count:,}", config.size[0], config.patch[0], config.width, config.depth, config.heads))
    for name in (f"resnet{depth}{stem}" for stem in ("", "_small") for depth in DEPTHS):
        if search in name and (shape := resnet_config(name)) is not None:
            with torch.device("meta"):
                count = sum(p.numel() for p in ResNet(shape).parameters())
            rows.append((name, f"{count:,}", "any", "", "", shape.depth, ""))
    if not rows:
        raise ValueError(f"no model's name contains {search!r}: `vitreous models` lists all")
    line = "{:<44}{:>14}{:>8}{:>8}{:>8}{:>8}{:>8}"
    print(line.format("name", "parameters", "image", "patch", "width", "depth", "heads"))
    for row in rows:
        print(line.format(*row))


def datasets() -> None:
    """List the data sets that are known by name, and what else can be named."""
    from vitreous.data.datasets import DATASETS

    for name, build in DATASETS.items():
        print(f"{name:<12} {(build.__doc__ or '').splitlines()[0]}")
    print("\nor a folder with a sub-folder for each class, with or without train/ and test/ (or val/) above them,")
    print("or .parquet files with a column of pictures and one of classes (a file, a 'pattern*.parquet', a folder),")
    print("or a data set on the Hugging Face Hub: org/name, hf:name or org/name:config (needs vitreous[hub])")
