"""Compare two checkpoints on the same images. python examples/compare_checkpoints.py [MODEL MODEL]

Without names: the packaged CIFAR-10 model, and the same with its weights rounded to multiples of 1/256. Each relevance
map explains the model's own answer, so maps differ where answers do.
"""

import sys

import torch
from scipy.stats import spearmanr
from skimage.data import astronaut, chelsea, coffee, rocket

import vitreous


def rounded() -> str:
    """Save the CIFAR-10 model with rounded weights to a folder."""
    model = vitreous.load("packaged:cifar10")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * 256).round() / 256)
    vitreous.save(model, "rounded")
    return "rounded"


names = sys.argv[1:3] if len(sys.argv) > 2 else ["packaged:cifar10", rounded()]
models = [vitreous.load(name) for name in names]
for read in (chelsea, coffee, rocket, astronaut):
    explanations = [vitreous.explain(read(), model, "relevance", device="cpu") for model in models]
    first, second = (explanation.map("relevance") for explanation in explanations)
    similar = f"{spearmanr(first.ravel(), second.ravel()).statistic:+.2f}" if first.shape == second.shape else "–"
    answers = "   ".join(explanation.summary.split(",")[0] for explanation in explanations)
    print(f"{read.__name__:10} {answers}   rank correlation of the relevance maps: {similar}")
