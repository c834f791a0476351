"""`STUDIES`: comparisons that are known by name, with the figures of the reports that they repeat."""

from dataclasses import dataclass

from vitreous.comparison.settings import Budget


@dataclass(frozen=True)
class Part:
    """One dataset of a named study."""

    models: tuple[str, ...]
    budget: Budget
    quoted: dict[str, float]
    """Model → accuracy in per cent as the report tells it: not measured here."""
    get: str
    """How to get what may be missing."""


@dataclass(frozen=True)
class NamedStudy:
    """Several datasets, one after the other."""

    about: str
    parts: tuple[Part, ...]


VIT, RESNET = "torchvision:vit_b_16@attention", "torchvision:resnet152@full"
WEIGHTS = "torchvision downloads weights and datasets on first use, into ~/.cache: run this once with a network"


def _fine_tuned(data: str, quoted: float, epochs: int) -> Part:
    # what report 004 tells: attention layers and head learn, batch 64, warm-up and cosine; the epochs are ours
    budget = Budget(data=data, recipe="pets", epochs=epochs, batch_size=64)
    return Part((VIT, RESNET), budget, {VIT: quoted}, WEIGHTS)


def _from_scratch(data: str, quoted: float) -> Part:
    # what report 001 tells: its small ViT, 32 px, 20 epochs, batch 64, cosine from 1e-3, shifts to 5 %
    budget = Budget(data=data, recipe=f"{data}-seed", epochs=20, batch_size=64)
    models = ("vit_femto_patch4_32", "resnet18_small")
    return Part(models, budget, {models[0]: quoted}, "torchvision downloads it on first use: run this with a network")


STUDIES: dict[str, NamedStudy] = {
    "seed-001": NamedStudy(
        "Seed report 001: a small ViT from scratch on MNIST and CIFAR-10, beside a ResNet-18 for small images",
        (_from_scratch("mnist", 98.10), _from_scratch("cifar10", 56.41)),
    ),
    "seed-004": NamedStudy(
        "Seed report 004: ViT-B/16 (attention layers and head) beside ResNet-152, fine-tuned on four datasets",
        (
            _fine_tuned("cifar10", 97.97, 10),
            _fine_tuned("cifar100", 87.41, 10),
            _fine_tuned("flowers102", 89.12, 20),
            _fine_tuned("pets", 93.65, 20),
        ),
    ),
}
