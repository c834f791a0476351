"""Models of a study: what a name stands for, and the config that each model gets."""

import sys
from dataclasses import asdict, replace

import pytest
import torch
from tiny_sets import make_folder

from vitreous.comparison import entrants
from vitreous.comparison.entrants import (
    Budget,
    Entrant,
    choose_recipe,
    configure,
    differing,
    find_entrant,
    split_policy,
)
from vitreous.data.splits import open_split
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.training.recipes import finetune_config
from vitreous.weights.load import load
from vitreous.weights.save import save

SAME = ("shift", "flip", "crop", "augment", "magnitude", "erasing", "mixup", "cutmix", "mix_share", "label_smoothing")
VIT, RESNET = find_entrant("vit_micro_patch4_32"), find_entrant("resnet18_small")
TUNED = Entrant("tuned", "tuned", "ViT", True, "attention", 224)
TUNED_RESNET = Entrant("tuned resnet", "tuned resnet", "ResNet", True, "full", None, batch_norm=True)


@pytest.mark.parametrize(
    ("asked", "kind", "start", "size"),
    [
        ("vit_micro_patch4_32", "ViT", "from scratch", 32),
        ("B/16", "ViT", "from scratch", 224),
        ("resnet50", "ResNet", "from scratch", None),
        ("resnet18_small", "ResNet", "from scratch", None),
        ("timm:resnet18", "timm", "from scratch", None),
        ("timm:vit_tiny_patch16_224", "timm", "from scratch", 224),
        ("vit_femto_patch4_32:position=sine-1d", "ViT", "from scratch", 32),
        ("resnet14_small:width=9", "ResNet", "from scratch", None),
        ("packaged:cifar10", "ViT", "fine-tuned (attention)", 32),
        ("packaged:cifar10@last:2", "ViT", "fine-tuned (last:2)", 32),
    ],
)
def test_a_name_tells_how_a_model_begins(asked, kind, start, size):
    found = find_entrant(asked)
    assert (found.label, found.kind, found.start, found.image_size) == (asked, kind, start, size)
    assert found.from_dict(asdict(found)) == found


def test_a_saved_resnet_is_fine_tuned_in_full(tmp_path):
    torch.save(ResNet(ResNetConfig(18, classes=3)).state_dict(), tmp_path / "mine.pth")
    found = find_entrant(str(tmp_path / "mine.pth"))
    assert (found.kind, found.start, found.pretrained) == ("ResNet", "fine-tuned (full)", True)


def test_only_a_policy_after_the_last_at_is_taken_off():
    assert split_policy("org/name@main@head") == ("org/name@main", "head")
    assert split_policy("org/name@v2") == ("org/name@v2", None)


def test_a_pre_trained_resnet_that_is_not_available_begins_from_scratch_with_a_note(monkeypatch):
    def offline(name):
        raise ConnectionError("no network")

    monkeypatch.setattr(entrants, "load", offline)
    lines = []
    found = find_entrant("torchvision:resnet152@full", lines.append)
    assert (found.model, found.kind, found.start) == ("resnet152", "ResNet", "from scratch")
    assert "begins from scratch: no network" in found.notes[0]
    assert len(lines) == 1
    with pytest.raises(ConnectionError):  # an untrained ViT-B/16 would be no substitute
        find_entrant("torchvision:vit_b_16@attention")


def test_a_policy_that_freezes_means_the_checkpoint_of_that_name_and_none_is_refused():
    with pytest.raises(ValueError, match="no model is known by the name 'vit_pico_patch2_8'"):
        find_entrant("vit_pico_patch2_8@head")
    with pytest.raises(ValueError, match="fresh weights: name a checkpoint, such as torchvision:resnet18@head"):
        find_entrant("resnet18@head")


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("vit_micro_patch4_23", "did you mean vit_micro_patch4_32"),
        ("resnet18_smal", "did you mean resnet18_small"),
        ("resnet18_smal@head", "did you mean resnet18_small"),
        ("resnet14_smal:width=9", "did you mean resnet14_small"),
        ("reznet50", "did you mean resnet50"),
        ("pakaged", "did you mean packaged"),
        ("swin_tiny_patch4_window7_224", "a Swin Transformer, which is not supported"),
        ("packaged:cifr10", "the package holds no model 'cifr10'"),
    ],
)
def test_a_misspelled_name_is_an_error_that_offers_the_nearest(asked, hint):
    with pytest.raises(ValueError, match=hint):
        find_entrant(asked)


@pytest.mark.parametrize(
    ("asked", "word", "policy"),
    [
        ("packaged@atention", "atention", "attention"),
        ("resnet18_small@ful", "ful", "full"),
        ("google/vit-base-patch16-224@lara", "lara", "lora"),
        ("B/16@lst:2", "lst:2", "last:N"),
        ("timm:resnet18@hed", "hed", "head"),
    ],
)
def test_a_misspelled_policy_is_named_as_one(asked, word, policy):
    with pytest.raises(ValueError, match=f"{asked}: no policy is called '{word}': did you mean {policy}\\?"):
        find_entrant(asked)


def test_a_file_whose_name_has_an_at_sign_is_no_misspelled_policy(tmp_path):
    path = tmp_path / "mine@hed"
    save(load("packaged:cifar10"), path)
    assert find_entrant(str(path)).model == str(path)


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
    tuned, tuned_resnet = configure(Budget("pets", batch_size=64), (TUNED, TUNED_RESNET))
    assert (tuned.optimizer, tuned.learning_rate, tuned.policy) == ("adamw", 3e-4, "attention")
    assert (tuned_resnet.optimizer, tuned_resnet.learning_rate) == ("sgd", pytest.approx(0.04 * 64 / 256))


def test_heads_alone_are_trained_alike():
    entrants = (replace(TUNED, policy="head"), replace(TUNED_RESNET, policy="head"))
    vit, resnet = configure(Budget("pets", batch_size=8), entrants)
    assert (resnet.optimizer, resnet.learning_rate) == ("adamw", 3e-3)
    assert differing([vit, resnet]) == []


def test_a_resnet_sees_images_of_the_vits_size():
    assert [config.image_size for config in configure(Budget("x"), (VIT, RESNET))] == [32, 32]
    assert [config.image_size for config in configure(Budget("x", image_size=48), (VIT, RESNET))] == [48, 48]
    assert [config.image_size for config in configure(Budget("x"), (TUNED, RESNET))] == [None, 224]


def test_small_resnets_with_fields_after_their_names_get_small_images_and_their_recipe():
    small = [find_entrant(name) for name in ("resnet14_small:width=9", "resnet18_small")]
    assert [config.image_size for config in configure(Budget("x"), small)] == [32, 32]
    assert choose_recipe(Budget("x"), small)[0] == "cifar10"
    mixed = [*small, find_entrant("resnet18")]
    assert [config.image_size for config in configure(Budget("x"), mixed)] == [224] * 3
    assert choose_recipe(Budget("x"), mixed)[0] == "imagenet"


def test_a_model_with_batch_norms_keeps_the_size_that_it_was_made_for():
    fixed = Entrant("fixed", "timm:levit_128s", "timm", False, "full", 224, batch_norm=True)
    assert [config.image_size for config in configure(Budget("x"), (VIT, fixed))] == [32, 224]
    assert [config.image_size for config in configure(Budget("x", image_size=64), (VIT, fixed))] == [64, 64]


def test_the_recipe_suits_the_data_unless_one_is_named():
    assert choose_recipe(Budget("digits"), (VIT, RESNET))[0] == "digits"
    assert choose_recipe(Budget("some/folder"), (VIT, RESNET))[0] == "cifar10"
    assert choose_recipe(Budget("some/folder"), (find_entrant("B/16"), find_entrant("resnet50")))[0] == "imagenet"
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


def test_a_timm_classifier_gets_the_optimiser_of_its_kind():
    convolutions, tokens = find_entrant("timm:resnet18"), find_entrant("timm:vit_tiny_patch16_224")
    assert (convolutions.batch_norm, tokens.batch_norm) == (True, False)
    vit, cnn, other = configure(Budget("cifar10"), (VIT, convolutions, tokens))
    assert (vit.optimizer, cnn.optimizer, other.optimizer) == ("muon", "sgd", "adamw")
    assert (cnn.average, other.stochastic_depth, other.image_size) == (0.0, 0.0, 224)
    assert cnn.image_size == 32


def test_a_timm_classifier_without_weights_or_timm_is_refused_in_a_line(monkeypatch):
    with pytest.raises(ValueError, match="would freeze fresh weights: name a file, timm:resnet18@FILE@head"):
        find_entrant("timm:resnet18@head")
    with pytest.raises(ValueError, match="takes full or head, not attention"):
        find_entrant("timm:resnet18@attention")
    with pytest.raises(FileNotFoundError, match=r"there is no file or folder .*/none.safetensors"):
        find_entrant("timm:resnet18@./none.safetensors")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"^timm:NAME needs timm: pip install 'vitreous\[timm\]'$"):
        find_entrant("timm:resnet18")


def test_grey_images_stay_grey_if_every_model_begins_from_scratch():
    for models, channels in (((VIT, RESNET), 1), ((VIT, TUNED_RESNET), None)):
        configs = configure(Budget("mnist", recipe="mnist-20-epochs"), models)
        assert [config.channels for config in configs] == [channels] * 2


def test_a_small_folder_gets_the_steps_that_finetune_would_give_it(tmp_path):
    learned, _ = open_split(str(make_folder(tmp_path / "zoo", {"cat": 15, "dog": 15, "owl": 15})), None)
    _, found = choose_recipe(Budget("folder"), (TUNED, RESNET), learned)
    usual = finetune_config(images=len(learned))
    assert (found.batch_size, found.epochs, found.warmup) == (usual.batch_size, usual.epochs, usual.warmup)
    assert found.batch_size < 10
    assert found.label_smoothing == choose_recipe(Budget("folder"), (TUNED, RESNET))[1].label_smoothing
