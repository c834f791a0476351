"""Where does the model look, and for what? python examples/look_inside.py [IMAGE]

Writes relevance, rollout and the attention of every block to inside/, and prints how far each block's heads look.
"""

import sys
from pathlib import Path

import torch

from vitreous import capture, load, read_image
from vitreous.data.samples import samples
from vitreous.inside.attention import mean_distance
from vitreous.pages.explanation import explain
from vitreous.views.inspection import Inspection

image = read_image(sys.argv[1]) if len(sys.argv) > 1 else samples()["chelsea"]
inspection = Inspection(load(), image)
page = explain(inspection, "relevance,rollout,attention-maps")
print(page.answer)

folder = Path("inside")
folder.mkdir(exist_ok=True)
for section in page.sections:
    for part, figure in section.figures.items():
        figure.savefig(folder / f"{section.name}{'-' if part else ''}{part}.png")
print(f"wrote {len(list(folder.iterdir()))} figures to {folder}/")

with torch.inference_mode(), capture(inspection.model, "attention") as seen:  # all blocks, all heads, all tokens
    inspection.model(inspection.x)
distance = mean_distance(
    seen.stack("attention")[:, 0], inspection.vit.layout, inspection.vit.config.patch
)  # [layers heads]
for layer, pixels in enumerate(distance.mean(dim=1).tolist()):
    print(f"block {layer}: heads look {pixels:4.1f} px far")
