import pytest

from vitreous.comparison.entrant import Entrant, enter
from vitreous.comparison.settings import Budget, choose_recipe, configure, differing

SAME = ("shift", "flip", "crop", "augment", "magnitude", "erasing", "mixup", "cutmix", "mix_share", "label_smoothing")
VIT, RESNET = enter("vit_micro_patch4_32"), enter("resnet18_small")
TUNED = Entrant("tuned", "tuned", "ViT", True, "attention", 224)
TUNED_RESNET = Entrant("tuned resnet", "tuned resnet", "ResNet", True, "full", None)


@pytest.mark.parametrize("entrants", [(VIT, RESNET), (TUNED, TUNED_RESNET), (TUNED, RESNET, VIT)])
def test_images_and_budget_are_the_same_for_all(entrants):
    configs = configure(Budget("cifar10", epochs=30), entrants)
    shared = (
        *SAME,
        "data",
        "epochs",
        "warmup",
        "batch_size",
        "repeats",
        "train_split",
        "precision",
        "channels",
        "seed",
    )
    for name in shared:
        assert len({getattr(config, name) for config in configs}) == 1, name
    assert configs[0].epochs == 30


def test_each_kind_gets_its_own_optimiser():
    vit, resnet = configure(Budget("cifar10"), (VIT, RESNET))
    assert (vit.optimizer, vit.stochastic_depth, vit.average) == ("muon", 0.1, 0.9995)
    assert (resnet.optimizer, resnet.stochastic_depth, resnet.average) == ("sgd", 0.0, 0.0)
    assert resnet.learning_rate == pytest.approx(0.4)  # 0.1 for 256 images, and the batch is of 1024
    tuned, _ = configure(Budget("pets"), (TUNED, TUNED_RESNET))
    assert (tuned.optimizer, tuned.learning_rate, tuned.policy) == ("adamw", 3e-4, "attention")


def test_a_resnet_sees_images_of_the_vits_size():
    assert [config.image_size for config in configure(Budget("x"), (VIT, RESNET))] == [32, 32]
    assert [config.image_size for config in configure(Budget("x", image_size=48), (VIT, RESNET))] == [48, 48]
    assert [config.image_size for config in configure(Budget("x"), (TUNED, RESNET))] == [None, 224]


def test_the_recipe_suits_the_data_unless_one_is_named():
    assert choose_recipe(Budget("digits"), (VIT, RESNET))[0] == "digits"
    assert choose_recipe(Budget("some/folder"), (VIT, RESNET))[0] == "cifar10"
    assert choose_recipe(Budget("some/folder"), (enter("B/16"), enter("resnet50")))[0] == "imagenet"
    assert choose_recipe(Budget("cifar10"), (TUNED, RESNET))[0] == "finetune"
    assert choose_recipe(Budget("cifar10", recipe="digits"), (VIT, RESNET))[0] == "digits"
    with pytest.raises(ValueError, match="no recipe is called 'cifra'"):
        choose_recipe(Budget("cifar10", recipe="cifra"), (VIT, RESNET))


def test_what_differs_is_found_field_by_field():
    names = [name for name, _ in differing(configure(Budget("cifar10"), (VIT, RESNET)))]
    assert names == ["optimizer", "learning_rate", "weight_decay", "clip", "average", "stochastic_depth"]


def test_step_sizes_can_be_given_one_for_each():
    rates = [c.learning_rate for c in configure(Budget("x", learning_rates=(0.1, 0.2)), (VIT, RESNET))]
    assert rates == [0.1, 0.2]
    with pytest.raises(ValueError, match="one for each of the 2 models, got 1"):
        configure(Budget("x", learning_rates=(0.1,)), (VIT, RESNET))


def test_a_budget_is_of_epochs_or_of_minutes():
    with pytest.raises(ValueError, match="not both"):
        Budget("x", epochs=1, minutes=1)
    with pytest.raises(ValueError, match="above 0, got 0"):
        Budget("x", minutes=0)
