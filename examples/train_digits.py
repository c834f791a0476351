"""Train the small ViT that ships inside the package, on scikit-learn's handwritten digits.

    python examples/train_digits.py src/vitreous/packaged/digits

1,437 pictures of 8×8 pixels, patches of 2×2, about a minute on two cores, no download. The 360 held-out digits are
used only to report.
"""

import sys

import torch
import torch.nn.functional as F
from torchvision.transforms.v2 import MixUp

from vitreous import Preprocess, ViT, open_set, variant
from vitreous.evaluation import evaluate
from vitreous.weights.card import Card
from vitreous.weights.save import save

EPOCHS, BATCH, RATE, SEED = 150, 64, 2e-3, 0  # chosen on a fifth of the training digits, then trained on all


def shifted(pixels: torch.Tensor) -> torch.Tensor:
    """Move half of the pictures `[b 1 8 8]` by up to one pixel each way."""
    padded = F.pad(pixels, (1, 1, 1, 1), value=-1.0)  # black, after normalising
    windows = padded.unfold(2, 8, 1).unfold(3, 8, 1)  # [b 1 3 3 8 8]
    rows, columns = torch.randint(3, (2, len(pixels)))
    moved = windows[torch.arange(len(pixels)), :, rows, columns]
    return torch.where(torch.rand(len(pixels), 1, 1, 1) < 0.5, moved, pixels)


def main(folder: str) -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # the work is too small to share
    preprocess = Preprocess(size=(8, 8), resize=(8, 8), mean=(0.5,), std=(0.5,), interpolation="bicubic")
    train = open_set("digits", split="train")
    pixels = torch.stack([preprocess(train.picture(i)) for i in range(len(train))])  # [n 1 8 8]
    labels = torch.tensor(train.labels)

    model = ViT(variant("vit_pico_patch2_8", channels=1))
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    steps = EPOCHS * (len(train) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps, pct_start=0.1)
    mix = MixUp(alpha=0.8, num_classes=10)
    for epoch in range(EPOCHS):
        model.train()
        for batch in torch.randperm(len(train))[: steps // EPOCHS * BATCH].split(BATCH):
            mixed, targets = mix(shifted(pixels[batch]), labels[batch])
            loss = F.cross_entropy(model(mixed), targets)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        if epoch % 20 == 19:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)

    model.eval().half()  # as it ships
    model.card = Card(name="digits", preprocess=preprocess, class_names=train.class_names, origin="packaged")
    for path in save(model, folder):
        print(f"wrote {path} ({path.stat().st_size:,} bytes)")
    result = evaluate(model.float(), open_set("digits"), device="cpu")
    print(f"{result.top1:.2%} of {result.pictures} held-out digits")


if __name__ == "__main__":
    main(sys.argv[1])
