"""`RECIPES`: names to configs, each with what it gives and on what hardware. `vitreous recipes` lists them."""

from dataclasses import dataclass

from vitreous.train.config import TrainConfig


@dataclass(frozen=True)
class Recipe:
    """A config, and what to expect of it."""

    about: str
    """One line."""
    config: TrainConfig
    expect: str
    """The result, the hardware, and whether it was measured here or is quoted from elsewhere."""


SEED = TrainConfig(
    # what report 001 tells: 28 → 32 px, patch 4, width 32, depth 4, heads 8, 20 epochs, batch 64, cosine from 1e-3,
    # shifts to 5 %; what it leaves open and is assumed here: MLP four times as wide, Adam, no warm-up
    model="vit_femto_patch4_32",
    epochs=20,
    batch_size=64,
    optimizer="adam",
    learning_rate=1e-3,
    weight_decay=0.0,
    shift=0.05,
    compile=True,
)

RECIPES: dict[str, Recipe] = {
    "digits": Recipe(
        "scikit-learn's handwritten digits, no download: the default",
        TrainConfig(
            model="vit_pico_patch2_8",
            data="digits",
            channels=1,
            epochs=40,
            batch_size=64,
            optimizer="muon",
            learning_rate=2e-3,
            warmup=5,
            mixup=0.4,
        ),
        "",
    ),
    "mnist-seed": Recipe(
        "seed report 001's model and budget on MNIST",
        TrainConfig(**{**SEED.to_dict(), "data": "mnist", "channels": 1}),
        "",
    ),
    "mnist": Recipe(
        "the same 54k parameters and 20 epochs with our recipe",
        TrainConfig(
            model="vit_femto_patch4_32",
            data="mnist",
            channels=1,
            epochs=20,
            batch_size=128,
            optimizer="muon",
            learning_rate=4e-3,
            warmup=1,
            weight_decay=0.01,
            shift=0.0625,
            average=0.999,
            compile=True,
        ),
        "",
    ),
    "cifar10-seed": Recipe(
        "seed report 001's model and budget on CIFAR-10",
        TrainConfig(**{**SEED.to_dict(), "data": "cifar10"}),
        "",
    ),
    "cifar10": Recipe(
        "a plain ViT from scratch on CIFAR-10, ten minutes on one large GPU",
        TrainConfig(
            model="vit_micro_patch4_32",
            data="cifar10",
            epochs=800,
            batch_size=1024,
            optimizer="muon",
            learning_rate=2e-3,
            weight_decay=0.1,
            warmup=10,
            clip=1.0,
            average=0.9995,
            shift=0.125,
            flip=True,
            augment="trivial",
            erasing=0.25,
            mixup=0.8,
            cutmix=1.0,
            label_smoothing=0.1,
            stochastic_depth=0.1,
            precision="bf16",
            compile=True,
            evaluate_every=10,
        ),
        "",
    ),
}

FINETUNE = TrainConfig(
    model="",
    data="",
    pretrained=True,
    policy="attention",
    epochs=20,
    batch_size=64,
    warmup=2,
    clip=1.0,
    flip=True,
    crop=(0.4, 1.0),
    label_smoothing=0.1,
    weight_decay=0.02,
    precision="fp32",
    evaluate_every=1,
)
"""What `finetune` does unless told otherwise: seed report 004's attention + head, batch 64, warm-up and cosine."""

POLICY_RATES = {"full": 1e-4, "head": 3e-3, "attention": 3e-4, "last": 2e-4, "lora": 1e-3}
"""The largest step size of each policy, unless told otherwise: the less learns, the further it may move."""
