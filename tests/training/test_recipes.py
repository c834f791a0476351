"""Every recipe is whole: a valid config, a known set and model, a result to expect; and the small ones run."""

from dataclasses import replace

import pytest
from tiny_runs import make_images

from vitreous.data.datasets import DATASETS
from vitreous.models.variants import VARIANTS, variant
from vitreous.training.loop import train
from vitreous.training.policies import POLICIES
from vitreous.training.recipes import FINETUNE, POLICY_RATES, RECIPES

SMALL = 64  # pixels of images whose models are small enough to try


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_whole(name):
    recipe = RECIPES[name]
    assert recipe.about
    assert "\n" not in recipe.about + recipe.expect
    assert "measured" in recipe.expect or "quoted" in recipe.expect, "a result, and where it comes from"
    assert recipe.config.data in DATASETS
    assert variant(recipe.config.model).width
    if not recipe.config.pretrained:
        assert recipe.config.model in VARIANTS


def test_the_recipes_that_were_promised_are_there():
    promised = "digits mnist-20-epochs mnist cifar10-20-epochs cifar10 cifar100 flowers102 pets imagenet"
    assert set(promised.split()) <= set(RECIPES)


def test_the_seeds_recipe_is_what_its_report_tells():
    config, shape = RECIPES["mnist-20-epochs"].config, variant(RECIPES["mnist-20-epochs"].config.model)
    assert (shape.size, shape.patch, shape.width, shape.depth, shape.heads) == ((32, 32), (4, 4), 32, 4, 8)
    assert (config.epochs, config.batch_size, config.learning_rate, config.shift) == (20, 64, 1e-3, 0.05)
    assert (config.optimizer, shape.mlp_width, config.warmup) == ("adam", 128, 0)
    ours, theirs = RECIPES["mnist"].config, config
    assert (ours.model, ours.epochs, ours.channels) == (theirs.model, theirs.epochs, theirs.channels)


def test_every_policy_has_a_step_size():
    assert set(POLICY_RATES) == set(POLICIES)
    assert FINETUNE.pretrained
    assert FINETUNE.policy.partition(":")[0] in POLICIES


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_shrunken_recipe_runs(name, tmp_path):
    config = RECIPES[name].config
    large = max(variant(config.model).size) > SMALL  # then a small model learns by the rest of the recipe
    shrunken = {"model": "vit_nano_patch4_32", "pretrained": False} if large else {}
    zoo = make_images(tmp_path / "zoo", each=4, size=24)
    shrunken |= {"data": str(zoo), "train_split": "train", "channels": None, "epochs": 1, "batch_size": 8}
    shrunken |= {"compile": False, "snapshots": 0, "device": "cpu", "validation": 0.0}
    assert set(train(replace(config, **shrunken), tmp_path / "run")) >= {"top1", "epochs", "seconds"}
