"""Show what a model attends to. python examples/look_inside.py [IMAGE]

Writes relevance, rollout and the attention of every block to inside/, and prints how much attention the class token of
each block gives to the patches.
"""

import sys

import torch
from skimage.data import chelsea

import vitreous

model = vitreous.load()
image = vitreous.read_image(sys.argv[1] if len(sys.argv) > 1 else chelsea())
explanation = vitreous.explain(image, model, "relevance,rollout,attention-maps", device="cpu")
print(explanation.summary)
print(f"wrote {len(explanation.save_figures('inside'))} figures to inside/")

x = model.card.preprocess(image)[None]  # [1 3 224 224]
with torch.inference_mode(), vitreous.capture(model, "attention", queries=[0]) as seen:  # the class token's rows
    model(x)
for block in range(model.config.depth):
    row = seen[f"blocks.{block}.attention"][0, :, 0]  # [heads tokens]
    patches = model.layout.to_grid(row).mean(dim=0)  # [rows columns]
    best = divmod(int(patches.argmax()), patches.shape[1])
    print(f"block {block}: {patches.sum():4.0%} of the class token's attention is on patches, most on {best}")
