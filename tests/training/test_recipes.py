"""Every recipe is whole: a valid config, a known set and model, a result to expect; and the small ones run."""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_runs import make_images, make_task

from vitreous.api.train import train as api_train
from vitreous.cli.main import main
from vitreous.data.datasets import DATASETS
from vitreous.models.variants import VARIANTS, split_changes, variant
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.scores import SCORES
from vitreous.training.loop import train
from vitreous.training.policies import POLICIES
from vitreous.training.recipes import FINETUNE, POLICY_RATES, RECIPES, UNMEASURED

OWN = {"pets-masks": "segment", "mosaic-labels": "multilabel", "digit-angles": "regress"}  # data of one's own
SMALL = 64  # pixels of images whose models are small enough to try


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_whole(name):
    recipe = RECIPES[name]
    assert recipe.about
    assert "\n" not in recipe.about + recipe.expect
    known = recipe.expect == UNMEASURED or "measured:" in recipe.expect or "quoted:" in recipe.expect
    assert known, "a result, and where it comes from"
    if name in OWN:
        assert (recipe.config.data, recipe.config.task) == ("", OWN[name])
        assert (Path(__file__).parents[2] / recipe.make.split()[1]).is_file()
        recipe.config.check_task(OWN[name])
    else:
        assert recipe.config.data in DATASETS
        assert not recipe.make
    if not recipe.config.model.startswith("packaged"):
        assert variant(recipe.config.model).width
    if not recipe.config.pretrained:
        assert split_changes(recipe.config.model, ViTConfig)[0] in VARIANTS


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
    large = config.pretrained or max(variant(config.model).size) > SMALL
    shrunken = {"model": "vit_nano_patch4_32", "pretrained": False} if large else {}  # and the rest of the recipe
    task = OWN.get(name)
    zoo = make_images(tmp_path / "zoo", each=4, size=24) if task is None else make_task(tmp_path / "zoo", task, size=24)
    shrunken |= {"data": str(zoo), "train_split": "train", "channels": None, "epochs": 1, "batch_size": 8}
    shrunken |= {"compile": False, "snapshots": 0, "device": "cpu", "validation": 0.0}
    if task is not None:
        shrunken |= {"image_size": 32, "policy": "full"}
    figure = SCORES[task or "classify"].main
    assert set(train(replace(config, **shrunken), tmp_path / "run")) >= {figure, "epochs", "seconds"}


@pytest.mark.parametrize("name", OWN)
def test_a_recipe_without_data_says_what_to_pass(name, capsys):
    with pytest.raises(SystemExit):
        main(["train", name])
    error = capsys.readouterr().err
    assert f"{name} has no data of its own: pass --data, such as what `python examples/" in error
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mosaic-labels", "digit-angles"])
def test_a_recipe_learns_from_data_that_is_named(name, tmp_path):
    table = make_task(tmp_path / "data", OWN[name], size=24)
    brief = {"epochs": 1, "batch_size": 8, "snapshots": 0, "device": "cpu", "progress": False}
    if RECIPES[name].config.pretrained:
        brief |= {"model": "packaged:cifar10", "image_size": 32}  # a small model
    run = api_train(name, data=str(table), output=tmp_path / "run", **brief)
    assert run.task == OWN[name]
    assert run.config.data == str(table)
