"""Classify images with timm as its users do: its model, its transform, a Dataset and a DataLoader.

    python benchmarks/timm_classify.py IMAGE|FOLDER MODEL_FOLDER

`folder.py` and `cold_start.py` measure against this script; it prints `path index probability` a line.
"""

import sys
from pathlib import Path

import timm
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

NAME = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


class Images(Dataset):
    def __init__(self, paths, transform):
        self.paths, self.transform = paths, transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return self.transform(Image.open(self.paths[i]).convert("RGB"))


def main():
    given, weights = Path(sys.argv[1]), Path(sys.argv[2]) / "model.safetensors"
    paths = sorted(path for path in given.rglob("*") if path.is_file()) if given.is_dir() else [given]
    model = timm.create_model(NAME, pretrained=False, checkpoint_path=weights).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    if given.is_dir():
        batches = DataLoader(Images(paths, transform), batch_size=32, num_workers=2)
    else:
        batches = [transform(Image.open(given).convert("RGB"))[None]]
    done = 0
    with torch.inference_mode():
        for batch in batches:
            probabilities, classes = model(batch).softmax(dim=-1).topk(5)
            for best, index in zip(probabilities.tolist(), classes.tolist(), strict=True):
                print(paths[done], index[0], best[0])
                done += 1


if __name__ == "__main__":
    main()
