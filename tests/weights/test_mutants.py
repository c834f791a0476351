"""Damaged checkpoints are refused or give what their own library gives; more in `benchmarks/checkpoint_mutants.py`."""

import random
from pathlib import Path

import pytest

pytest.importorskip("timm")
pytest.importorskip("transformers")
from mutated_checkpoints import Mutant, judge, mutants
from originals import BASES, OWN, read_weights, write_weights

QUICK = ("timm test_vit", "transformers dinov2", *OWN)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Sound checkpoints, each written once: base → folder."""
    folders: dict[str, Path] = {}

    def write(name: str) -> Path:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("sound")
            BASES[name].write(folders[name])
        return folders[name]

    return write


def silent(base: str, folder: Path, scratch: Path, count: int, seed: int) -> list[str]:
    found = []
    rng = random.Random(f"{seed} {base}")
    for mutant in mutants(BASES[base], folder, rng, tensors=count, fields=count if BASES[base].config else 0):
        result, why = judge(BASES[base], folder, mutant, scratch)
        if result not in ("refused", "same"):
            found.append(f"{result}: {mutant.kind}, {mutant.text}: {why}")
    return found


@pytest.mark.parametrize("base", [*QUICK, *(pytest.param(b, marks=pytest.mark.slow) for b in BASES if b not in QUICK)])
def test_a_sound_checkpoint_gives_what_its_own_library_gives(base, sound, tmp_path):
    assert judge(BASES[base], sound(base), None, tmp_path / "copy") == ("same", "")


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
def test_no_mutant_gives_other_numbers_in_silence(base, sound, tmp_path):
    assert silent(base, sound(base), tmp_path / "mutant", count=4 if BASES[base].large else 8, seed=0) == []


def test_a_mutant_that_loads_with_other_numbers_is_noticed(sound, tmp_path):
    """The judge itself: a loader that took a changed file for the sound one would be caught."""
    base, folder = BASES["timm test_vit"], sound("timm test_vit")

    def halve(changed: Path) -> None:
        tensors = read_weights(changed / base.weights)
        write_weights(tensors | {"norm.weight": tensors["norm.weight"] / 2}, changed / base.weights)

    assert judge(base, folder, Mutant("", "", halve), tmp_path / "a")[0] == "same"  # timm reads the changed file, too
    result, why = judge(
        base, folder, Mutant("", "", halve, harmless=True), tmp_path / "b"
    )  # compared with the sound one
    assert result == "silent"
    assert why.startswith("outputs differ")
