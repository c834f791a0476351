"""What a trained model says of each test image, kept as `predictions.npz` so that no second pass is needed.

Shapes:  n images of the test set, in its order
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.data.image_dataset import ImageDataset
from vitreous.data.images import ImageError
from vitreous.models.last_block import logits_only
from vitreous.predict.evaluate import prepared
from vitreous.predict.pipeline import sent
from vitreous.runtime.device import pick_device
from vitreous.runtime.files import write_atomic
from vitreous.weights.load import Model

FILE = "predictions.npz"
BATCH = 64


@dataclass(frozen=True)
class Predictions:
    """Arrays `[n]`."""

    label: NDArray[np.int64]
    """The right class."""
    predicted: NDArray[np.int64]
    """The first guess."""
    probability: NDArray[np.float32]
    """How sure the model is of its first guess."""

    @property
    def correct(self) -> NDArray[np.bool_]:
        return self.predicted == self.label

    def write(self, path: Path) -> Path:
        """With `correct` among them, for whoever reads the file without us."""

        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:
                arrays = {field.name: getattr(self, field.name) for field in fields(self)}
                np.savez_compressed(file, **arrays, correct=self.correct)

        return write_atomic(path, write)

    @classmethod
    def read(cls, path: Path) -> Self:
        with np.load(path) as found:
            return cls(*(found[field.name] for field in fields(cls)))


@torch.inference_mode()
def predict(model: Model, data: ImageDataset, *, device: str = "auto", precision: str = "fp32") -> Predictions:
    """One pass over the images in the number format that the model was trained in; classes are the data's own."""
    place = pick_device(device)
    model = model.to(place).eval()
    problems: list[ImageError] = []
    labels: list[int] = []
    predicted, probability = [], []
    for tensors, part in prepared(data, model.card.preprocess, BATCH, problems):
        with torch.autocast(place.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = logits_only(model, model.card.preprocess.normalise(sent(tensors, place))).float()
        best = logits.softmax(dim=-1).max(dim=-1)
        labels += part
        predicted.append(best.indices.cpu().numpy())
        probability.append(best.values.cpu().numpy())
    if problems:  # images are counted by their place in the set: none may be missing
        raise problems[0]
    return Predictions(np.array(labels), np.concatenate(predicted), np.concatenate(probability))
