"""`export`: write a model as a graph for another runtime, an ONNX file or torch's `.pt2`, checked against the model.

The graph takes normalised `images` `[batch channels height width]` and returns `logits`, `numbers` if it learned them,
or `features` if the model has no classifier. Logits of a dense head are `[batch classes height width]`. The batch size
is free; height and width too with `dynamic_size`. The file carries the config, preprocessing, class names and task that
`config.json` has in a saved model: in ONNX as the metadata `vitreous`, in a `.pt2` as the extra file `vitreous.json`.
"""

import json
import os
import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitreous.models.last_block import Compute
from vitreous.models.resnet import ResNet
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.speed.dynamic_size import DynamicSizeViT
from vitreous.weights.card import fold_standard
from vitreous.weights.positions import CONVENTIONS, resize_positions
from vitreous.weights.save import describe_model
from vitreous.weights.timm_architectures import resizing

Size = tuple[int, int]
BATCHES = (1, 3)
"""Batch sizes at which a written graph is compared with the model."""
TOLERANCE = 1e-4
"""Largest allowed difference from the model, relative to the largest output, or to 1 if that is smaller."""
ONE_FILE = 1_500_000_000
"""Bytes of weights above which ONNX writes them to a separate `.onnx.data`: protobuf ends at 2 GiB."""
OPSET = 18


@dataclass(frozen=True)
class Exported:
    """The files of an exported graph, and how it compares with the model."""

    files: list[Path]
    difference: float
    """Largest difference of an output from the model's."""
    tolerance: float
    """Largest difference that was allowed."""
    tried: tuple[tuple[int, ...], ...]
    """Shapes of the compared images."""


def export(
    model: nn.Module,
    path: str | Path,
    kind: str,
    *,
    dynamic_size: bool = False,
    resize: str | None = None,
    opset: int | None = None,
) -> Exported:
    """Write `model` as a graph of one of the `KINDS`, in float32, and check it against the model.

    With `dynamic_size` height and width may be any multiples of the patch size from two on (for a ResNet: any number of
    pixels that gives more than one position in the last stage), and a ViT's position embeddings are resized inside the
    graph by the `resize` convention, by default that of the library the checkpoint came from. `opset` is ONNX's. A
    graph that differs from the model raises an error and leaves no file.

    >>> from vitreous.models.variants import variant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = export(ViT(variant("vit_femto_patch4_32", depth=1)), f"{folder}/femto.pt2", "torch-export")
    >>> written.files[0].name, written.difference <= written.tolerance
    ('femto.pt2', True)
    """
    path = Path(path)
    if kind not in KINDS:
        raise ValueError(f"the kind of graph must be one of {', '.join(KINDS)}, got {kind!r}")
    chosen = KINDS[kind]
    if path.suffix != chosen.suffix:
        raise ValueError(f"{kind} is written as {chosen.suffix}: try {path.with_suffix(chosen.suffix).name}")
    if not isinstance(model, ViT | ResNet):
        raise ValueError(f"only ViTs and ResNets are exported, got a {type(model).__name__}")
    if opset is not None and kind != "onnx":
        raise ValueError(f"opset is an option of onnx, {kind} has none")
    if opset is not None and (not isinstance(opset, int) or opset < OPSET):
        raise ValueError(f"opset must be at least {OPSET}, which brought resizing with antialiasing, got {opset!r:.60}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file that ends in {chosen.suffix}")
    if resize is not None and resize not in CONVENTIONS:
        raise ValueError(f"resize must be one of {', '.join(CONVENTIONS)}, got {resize!r}")
    if missing := [name for name in chosen.needs if find_spec(name) is None]:
        raise ImportError(f"{kind} needs {', '.join(missing)}: pip install 'vitreous[export]'")
    convention = resize or convention_of(model)
    model = deepcopy(model).cpu().float().eval()
    fold_standard(model)  # of numbers that are still learned
    own = {**describe_model(model, path.stem)["vitreous"], "dynamic_size": dynamic_size, "resize": convention}
    program = trace(model, dynamic_size, convention)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        draft = Path(folder) / path.name
        try:
            chosen.write(program, draft, output_name(model), json.dumps(own, ensure_ascii=False), opset or OPSET)
            graph = chosen.open(draft)
        except Exception as error:  # onnx, onnxscript and onnxruntime have each their own
            if opset in (None, OPSET) or isinstance(error, OSError):
                raise
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ValueError(f"opset {opset} cannot be written here: try {OPSET} ({reason:.200})") from error
        difference, tolerance, tried = compare(model, graph, dynamic_size, convention)
        if not difference <= tolerance:  # also true for NaN
            raise ValueError(
                f"the {kind} graph is {difference:.2g} from the model, at most {tolerance:.2g} is allowed: "
                "nothing was written"
            )
        return Exported(publish(draft, path), difference, tolerance, tried)


def convention_of(model: ViT | ResNet) -> str:
    """Choose how an exported graph resizes positions by default: as the model's own library does, or as timm."""
    config, way = model.config, None if model.card is None else model.card.resize
    return way or (resizing("", config) if isinstance(config, ViTConfig) else "timm")


def output_name(model: ViT | ResNet) -> str:
    """Return the name of the exported graph's output: `logits`, `numbers`, or `features` of a model without a head."""
    projects = model.card is not None and model.card.head != "classifier"
    if projects or not model.config.classes:
        return "features"
    return "numbers" if model.card is not None and model.card.task == "regress" else "logits"


def trace(model: ViT | ResNet, dynamic_size: bool, convention: str) -> ExportedProgram:
    """Trace the model for export with a free batch size, and free height and width with `dynamic_size`."""
    (height, width), (tall, wide) = model.config.size, stride(model)
    shapes: dict[int, Any] = {0: Dim("batch", min=1)}
    graph: nn.Module = Images(model)
    if dynamic_size:  # torch specialises size 1: the last stage has at least two rows and columns
        if isinstance(model, ViT):
            graph = DynamicSizeViT(model, convention)
            smallest = 2 * tall, 2 * wide
            shapes |= {2: tall * Dim("rows", min=2), 3: wide * Dim("columns", min=2)}
        else:
            free = deepcopy(model)
            if isinstance(free.maxpool, nn.MaxPool2d):
                free.maxpool = FreePool(free.maxpool)
            graph = Images(free)
            smallest = tall + 1, wide + 1
            shapes |= {2: Dim("height", min=smallest[0]), 3: Dim("width", min=smallest[1])}
        if height < smallest[0] or width < smallest[1]:
            raise ValueError(
                f"a graph with dynamic size takes {smallest[0]}×{smallest[1]} pixels and more, "
                f"this model {height}×{width}: export it without dynamic_size"
            )
        height, width = height + tall, width + 2 * wide  # another grid than the model's, so that no size is specialised
    example = torch.zeros(2, model.config.channels, height, width)
    with torch.no_grad():
        return torch.export.export(graph, (example,), dynamic_shapes={"images": shapes})


class Images(nn.Module):
    """A model to export whose argument is named `images`, like the graph's input."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.model(images)
        return output


class FreePool(nn.Module):
    """A max pool that exports for odd and even sizes, by slicing: `[b c h w]` → `[b c ⌈h/s⌉ ⌈w/s⌉]`.

    torch 2.11 traces a larger stride only for odd or only for even sizes. Kernel, padding and stride are a ResNet's.
    """

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool, self.stride = nn.MaxPool2d(pool.kernel_size, 1, pool.padding), pool.stride

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.pool(x)[..., :: self.stride, :: self.stride]
        return output


def stride(model: ViT | ResNet) -> Size:
    """Return the step between the image sizes that an export lists: a ViT's patch, a ResNet's product of strides.

    It is in pixels, height and width.
    """
    config = model.config
    if isinstance(config, ViTConfig):
        return config.patch
    return config.stride, config.stride


@torch.no_grad()
def compare(
    model: ViT | ResNet, run: Compute, dynamic_size: bool, convention: str
) -> tuple[float, float, tuple[tuple[int, ...], ...]]:
    """Compare exported graph and model on noise: the largest difference, the allowed one, and the shapes."""
    differences, outputs, tried = [], [], []
    generator = torch.Generator().manual_seed(0)
    for size in sizes(model, dynamic_size):
        other = isinstance(model, ViT) and size != model.config.size
        truth = at_size(model, size, convention) if other else model
        for batch in BATCHES:
            x = torch.randn(batch, model.config.channels, *size, generator=generator)
            expected, found = truth(x), run(x)
            if found.shape != expected.shape:
                raise ValueError(f"the graph gives {list(found.shape)}, the model {list(expected.shape)}")
            differences.append((found - expected).abs().max())
            outputs.append(expected.abs().max())
            tried.append(tuple(x.shape))
    largest = torch.stack(outputs).max().item()
    return torch.stack(differences).max().item(), TOLERANCE * max(1.0, largest), tuple(tried)


def at_size(model: ViT, size: Size, convention: str) -> ViT:
    """Build the model that an export is checked against at another image size, with the same weights.

    >>> from vitreous.models.variants import variant
    >>> at_size(ViT(variant("vit_femto_patch4_32")), (40, 24), "timm").layout.grid
    (10, 6)
    """
    config = replace(model.config, image_size=size)
    tensors = dict(model.state_dict())
    if config.position == "learned":
        prefix = config.positions - config.layout.patches
        tensors["pos_embed"] = resize_positions(
            tensors["pos_embed"], model.config.grid, config.grid, convention, prefix
        )
    with torch.device("meta"):
        other = ViT(config)
    other.load_state_dict(tensors, assign=True)
    return other.train(model.training)


def sizes(model: ViT | ResNet, dynamic_size: bool) -> list[Size]:
    """List the image sizes at which a graph is checked: the model's, and with `dynamic_size` another shape."""
    height, width = own = model.config.size
    if not dynamic_size:
        return [own]
    tall, wide = stride(model)
    return [own, (height + 2 * tall, width - wide if width > 3 * wide else width + wide)]


def write_onnx(program: ExportedProgram, path: Path, output: str, described: str, opset: int) -> None:
    """Write an exported program as an ONNX file."""
    written = torch.onnx.export(
        program,
        input_names=["images"],
        output_names=[output],
        dynamic_shapes={"images": {0: "batch", 2: "height", 3: "width"}},  # names only: tracing set what is free
        opset_version=opset,
        dynamo=True,
        verbose=False,
    )
    assert written is not None
    written.model.metadata_props["vitreous"] = described
    weights = sum(tensor.nbytes for tensor in program.state_dict.values())
    written.save(path, external_data=weights > ONE_FILE)


def open_onnx(path: Path) -> Compute:
    """Open an ONNX file in onnxruntime, to check it."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"images": x.numpy()})[0])


def write_torch_export(program: ExportedProgram, path: Path, output: str, described: str, opset: int) -> None:
    """Write an exported program as torch's `.pt2` file."""
    torch.export.save(program, path, extra_files={"vitreous.json": described})


def open_torch_export(path: Path) -> Compute:
    """Open torch's `.pt2` file, to check it."""
    module = torch.export.load(path).module()
    return lambda x: module(x)


@dataclass(frozen=True)
class Kind:
    """A file format for exported graphs."""

    suffix: str
    write: Callable[[ExportedProgram, Path, str, str, int], None]
    open: Callable[[Path], Compute]
    needs: tuple[str, ...] = ()
    """Packages of the extra `[export]`."""


KINDS: dict[str, Kind] = {
    "onnx": Kind(".onnx", write_onnx, open_onnx, ("onnx", "onnxscript", "onnxruntime")),
    "torch-export": Kind(".pt2", write_torch_export, open_torch_export),
}


def publish(draft: Path, path: Path) -> list[Path]:
    """Move a checked graph's files into place; a separate weights file goes first, never under an older graph."""
    separate = [file for file in draft.parent.iterdir() if file != draft]
    if separate:
        path.unlink(missing_ok=True)
    placed = [path]
    for file in [*separate, draft]:
        with file.open("r+b") as written:
            os.fsync(written.fileno())
        os.replace(file, path.parent / file.name)
        if file != draft:
            placed.append(path.parent / file.name)
    return placed
