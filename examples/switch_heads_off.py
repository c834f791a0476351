"""Which heads does an answer hang on? python examples/switch_heads_off.py [IMAGE]

Each head is switched off by itself; then the three that had helped most, together.
"""

import sys

import torch

from vitreous import intervene, load, read_image
from vitreous.data.samples import samples
from vitreous.inside.intervene import ablate_heads

model = load()
image = read_image(sys.argv[1]) if len(sys.argv) > 1 else samples()["chelsea"]
x = model.card.preprocess(image)[None]  # [1 3 32 32]

with torch.inference_mode():
    logits = model(x)[0]
    answer = int(logits.argmax())
    effect = ablate_heads(model, x, answer)  # [layers heads]
    helpful = effect.flatten().argsort()[:3].tolist()  # the most negative: without them the logit falls most
    pairs = [divmod(index, model.config.heads) for index in helpful]
    with intervene(model, heads_off=pairs):
        without = model(x)[0]

print(f"{model.card.label(answer)}: logit {logits[answer]:.2f}")
for layer, head in pairs:
    print(f"block {layer}, head {head}: {effect[layer, head]:+.2f}")
print(f"all three off: {without[answer] - logits[answer]:+.2f}, answer {model.card.label(int(without.argmax()))}")
