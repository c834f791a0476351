"""Find the heads that an answer depends on. python examples/switch_heads_off.py [IMAGE]

Each head is switched off by itself; then the three with the largest effect, together.
"""

import sys

import torch
from skimage.data import chelsea

import vitreous

model = vitreous.load()
x = model.card.preprocess(vitreous.read_image(sys.argv[1] if len(sys.argv) > 1 else chelsea()))[None]  # [1 3 224 224]
pairs = [(block, head) for block in range(model.config.depth) for head in range(model.config.heads)]


def logits_without(heads: list[tuple[int, int]]) -> torch.Tensor:
    with torch.inference_mode(), vitreous.intervene(model, heads_off=heads):
        return model(x)[0]  # [classes]


logits = logits_without([])
answer = int(logits.argmax())
effects = {pair: (logits_without([pair]) - logits)[answer].item() for pair in pairs}
largest = sorted(pairs, key=effects.__getitem__)[:3]  # the most negative: without them the logit falls most

print(f"{model.card.label(answer)}: logit {logits[answer]:.2f}")
for block, head in largest:
    print(f"block {block}, head {head}: {effects[block, head]:+.2f}")
without = logits_without(largest)
print(f"all three off: {without[answer] - logits[answer]:+.2f}, answer {model.card.label(int(without.argmax()))}")
