"""Where does the model look, and for what? python examples/look_inside.py [PICTURE]

Writes relevance, rollout and the attention of every block to inside/, and prints how far each block's heads look.
"""

import sys
from pathlib import Path

import torch

from vitreous import capture, load, read_picture
from vitreous.inside.attention import mean_distance
from vitreous.pages.explanation import explain
from vitreous.data.samples import samples
from vitreous.views.inspection import Scene

picture = read_picture(sys.argv[1]) if len(sys.argv) > 1 else samples()["chelsea"]
scene = Scene(load(), picture)
page = explain(scene, "relevance,rollout,attention-maps")
print(page.answer)

folder = Path("inside")
folder.mkdir(exist_ok=True)
for section in page.sections:
    for part, figure in section.figures.items():
        figure.savefig(folder / f"{section.name}{'-' if part else ''}{part}.png")
print(f"wrote {len(list(folder.iterdir()))} figures to {folder}/")

with torch.inference_mode(), capture(scene.model, "attention") as seen:  # all blocks, all heads, all tokens
    scene.model(scene.x)
distance = mean_distance(seen.stack("attention")[:, 0], scene.vit.layout, scene.vit.config.patch)  # [layers heads]
for layer, pixels in enumerate(distance.mean(dim=1).tolist()):
    print(f"block {layer}: heads look {pixels:4.1f} px far")
