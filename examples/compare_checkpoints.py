"""Two checkpoints on the same images. python examples/compare_checkpoints.py [MODEL MODEL]

Without names: the packaged model, and the same with its weights rounded to multiples of 1/256. A relevance map is
that of each model's own answer, so that maps differ where answers do.
"""

import sys

import torch

from vitreous import classify, load, save
from vitreous.data.samples import samples
from vitreous.inside.faithfulness import rank_correlation
from vitreous.inside.relevance import relevance


def rounded() -> str:
    """The packaged model, coarser, in a folder of its own."""
    model = load()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * 256).round() / 256)
    save(model, "rounded")
    return "rounded"


names = sys.argv[1:3] if len(sys.argv) > 2 else ["packaged", rounded()]
models = [load(name) for name in names]
for name, image in samples().items():
    guesses = [classify(image, model, device="cpu").best for model in models]
    maps = [relevance(model, model.card.preprocess(image)[None])[0] for model in models]
    same = [m.shape for m in maps] == [maps[0].shape] * 2
    alike = f"{rank_correlation(*maps):+.2f}" if same else "not comparable: other grids"
    message = "   ".join(f"{guess.class_name} {guess.probability:.0%}" for guess in guesses)
    print(f"{name:10} {message}   relevance maps alike: {alike}")
