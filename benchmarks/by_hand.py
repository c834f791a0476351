"""Hand-written parts beside the library that could stand in their place: `docs/reference/by-hand.md` quotes the output.

    pip install picklescan natsort && python benchmarks/by_hand.py
    python benchmarks/by_hand.py --only muon augmentation

Each part prints one line. Times are medians of interleaved rounds on this machine, one thread.
"""

import argparse
import contextlib
import importlib.metadata
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

TESTS = Path(__file__).resolve().parents[1] / "tests"


def milliseconds(*contenders: Callable[[], object], rounds: int = 7) -> list[float]:
    """The median time of each contender, all of them in turn."""
    times: list[list[float]] = [[] for _ in contenders]
    for number in range(rounds + 1):
        for contender, kept in zip(contenders, times, strict=True):
            begun = time.perf_counter()
            contender()
            if number:  # the first round warms up
                kept.append(1000 * (time.perf_counter() - begun))
    return [statistics.median(kept) for kept in times]


def pickle_scan() -> str:
    """Hostile pickles and archives: which reader refuses them, and which reads what training scripts save."""
    import pickle

    sys.path[:0] = [str(TESTS), str(TESTS / "support")]
    import bad_checkpoints
    from picklescan.scanner import scan_file_path

    from vitreous.weights.read import read as read_checkpoint

    def refuses(read: Callable[[Path], object], path: Path) -> bool:
        try:
            read(path)
        except (ValueError, OSError, RuntimeError, MemoryError, EOFError, RecursionError, pickle.UnpicklingError):
            return True
        return False

    def flagged(path: Path) -> bool:
        found = scan_file_path(str(path))
        return bool(found.infected_files or found.scan_err)

    def torch_load(path: Path) -> object:
        return torch.load(path, weights_only=True, map_location="cpu")

    with tempfile.TemporaryDirectory() as name:
        folder, canary = Path(name), Path(name, "canary")
        hostile = [path for _, path in bad_checkpoints.pickles(folder, canary) if path.suffix == ".pth"]
        hostile += [path for _, path in bad_checkpoints.bombs(folder) if path.suffix == ".pth"]
        extras = {
            "options": argparse.Namespace(lr=1e-3),
            "best accuracy": np.float64(0.9),
            "path": Path("runs"),
            "random state": random.Random(0).getstate(),
            "generator": np.random.default_rng(0).bit_generator.state,
        }
        sound = []
        for number, extra in enumerate(extras.values()):
            sound.append(folder / f"sound-{number}.pth")
            torch.save({"model": {"head.bias": torch.ones(2)}, "extra": extra}, sound[-1])
        ours = sum(refuses(read_checkpoint, path) for path in hostile)
        scanned = sum(flagged(path) for path in hostile)
        loaded = sum(refuses(torch_load, path) for path in hostile)
        reads = [sum(not refuses(read, path) for path in sound) for read in (read_checkpoint, torch_load)]
    return (
        f"of {len(hostile)} hostile pickles refused: ours {ours}, picklescan {scanned}, "
        f"torch.load(weights_only=True) {loaded}; of {len(sound)} sound ones with extras read: ours {reads[0]}, "
        f"torch.load(weights_only=True) {reads[1]}"
    )


def npz() -> str:
    """An archive of 1 MB that claims to be large: the memory that reading it takes."""
    import tracemalloc

    from vitreous.weights.safety.npz import read_npz

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "zeros.npz"
        np.savez_compressed(path, **{f"w{i}": np.zeros(2**24, np.float32) for i in range(4)})
        peaks = []
        for read in (lambda: dict(np.load(path).items()), lambda: read_npz(path)):
            tracemalloc.start()
            with contextlib.suppress(ValueError):
                read()
            peaks.append(tracemalloc.get_traced_memory()[1] / 2**20)
            tracemalloc.stop()
        size = path.stat().st_size / 2**20
    return f"an archive of {size:.2f} MiB: numpy.load takes {peaks[0]:.0f} MiB, ours {peaks[1]:.1f} MiB"


def counter_random() -> str:
    """Ten random numbers for each of 1,024 images, the same in every batch and after every restart."""
    from vitreous.data.counter_random import CounterRandom

    indices = torch.arange(1024)

    def generators() -> None:
        for index in indices.tolist():
            torch.rand(10, generator=torch.Generator().manual_seed(index))

    def counters() -> None:
        random_numbers = CounterRandom.of(0, 1, indices)
        for purpose in "abcdefghij":
            random_numbers.uniform(purpose)

    theirs, ours = milliseconds(generators, counters)
    return f"1,024 images: a torch.Generator each {theirs:.1f} ms, counter-based {ours:.2f} ms"


def augmentation() -> str:
    """TrivialAugment on a batch of 512 images of 32 px, each with its own operation."""
    from torchvision.transforms.v2 import TrivialAugmentWide

    from vitreous.data.augment.randaugment import RandomOperations
    from vitreous.data.counter_random import CounterRandom

    pixels = torch.randint(0, 256, (512, 3, 32, 32), dtype=torch.uint8)
    batched, single = RandomOperations("trivial", (32, 32)), TrivialAugmentWide()
    random_numbers = CounterRandom.of(0, 1, torch.arange(512))
    theirs, ours = milliseconds(
        lambda: torch.stack([single(image) for image in pixels]), lambda: batched(pixels, random_numbers)
    )
    return f"512 images of 32 px: torchvision one by one {theirs:.0f} ms, the batch at once {ours:.0f} ms"


def muon() -> str:
    """One optimiser step over the matrices of the CIFAR-10 model."""
    from vitreous import ViT, variant
    from vitreous.training.optimisers import Muon

    steps = []
    for make in (lambda p: torch.optim.Muon(p, adjust_lr_fn="match_rms_adamw"), Muon):
        matrices = [p for p in ViT(variant("vit_micro_patch4_32")).blocks.parameters() if p.dim() == 2]
        for matrix in matrices:
            matrix.grad = torch.randn_like(matrix)
        steps.append(make(matrices).step)
    theirs, ours = milliseconds(*steps)
    return f"{len(matrices)} matrices: torch.optim.Muon {theirs:.0f} ms, stacked by shape {ours:.0f} ms"


def figures() -> str:
    """14 × 14 tiles with a title and a colour bar."""
    import matplotlib.pyplot as plt

    from vitreous.figures.tiles import draw_similarity_tiles

    tiles = np.random.default_rng(0).uniform(-1, 1, (14, 14, 14, 14))

    joined = tiles.transpose(0, 2, 1, 3).reshape(196, 196)

    def constrained(rows: int) -> None:
        figure, axes = plt.subplots(rows, rows, layout="constrained", figsize=(7, 7), squeeze=False)
        for ax, tile in zip(axes.flat, [joined] if rows == 1 else tiles.reshape(-1, 14, 14), strict=True):
            image = ax.imshow(tile)
            ax.set_axis_off()
        figure.colorbar(image, ax=axes)
        figure.suptitle("position embeddings")
        figure.canvas.draw()
        plt.close(figure)

    def ours() -> None:
        draw_similarity_tiles(tiles, title="position embeddings").canvas.draw()

    slow, one, fast = milliseconds(lambda: constrained(14), lambda: constrained(1), ours, rounds=3)
    return (
        f"196 tiles, constrained layout: subplots {slow:.0f} ms, one joined image {one:.0f} ms; our card {fast:.0f} ms"
    )


def natural_order() -> str:
    """200,000 file names in the order people expect."""
    from natsort import natsorted, ns

    from vitreous.data.finding import _natural

    names = [f"IMG_{number * 7919 % 200_000}.jpg" for number in range(200_000)]
    theirs, ours = milliseconds(
        lambda: natsorted(names, alg=ns.IGNORECASE), lambda: sorted(names, key=_natural), rounds=3
    )
    return f"200,000 names: natsort {theirs:.0f} ms, ours {ours:.0f} ms"


def paired_test() -> str:
    """Two models' correct answers to 10,000 images with three seeds: the paired test over images."""
    from scipy.stats import permutation_test

    from vitreous.comparison.statistics import images_test

    generator = np.random.default_rng(2)
    one, other = generator.random((3, 10_000)) < 0.80, generator.random((3, 10_000)) < 0.78
    differences = (one.sum(axis=0) - other.sum(axis=0)).astype(float)

    def sampled() -> float:
        found = permutation_test((differences,), np.sum, permutation_type="samples", n_resamples=9999, batch=500)
        return float(found.pvalue)

    theirs, ours = milliseconds(sampled, lambda: images_test(one, other), rounds=1)
    return (
        f"10,000 images: scipy's 9,999 samples {theirs:.0f} ms (p = {sampled():.1g}), "
        f"ours {ours:.1f} ms (p = {images_test(one, other):.1g})"
    )


PARTS = {
    "pickle-scan": pickle_scan,
    "npz": npz,
    "counter-random": counter_random,
    "augmentation": augmentation,
    "muon": muon,
    "figures": figures,
    "natural-order": natural_order,
    "paired-test": paired_test,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    torch.set_num_threads(1)
    for name in parser.parse_args().only:
        try:
            print(f"{name}: {PARTS[name]()}", flush=True)
        except ModuleNotFoundError as error:
            print(f"{name}: not measured, {error.name} is not installed", flush=True)
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("torch", "torchvision", "matplotlib"))
    print(f"{', '.join(versions)}; Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
