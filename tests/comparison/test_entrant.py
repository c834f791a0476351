import pytest
import torch

from vitreous.comparison import entrant
from vitreous.comparison.entrant import enter, split_policy
from vitreous.models.resnet import ResNet, ResNetConfig


@pytest.mark.parametrize(
    ("asked", "kind", "start", "size"),
    [
        ("vit_micro_patch4_32", "ViT", "from scratch", 32),
        ("B/16", "ViT", "from scratch", 224),
        ("resnet50", "ResNet", "from scratch", None),
        ("resnet18_small", "ResNet", "from scratch", None),
        ("packaged", "ViT", "fine-tuned (attention)", 32),
        ("packaged@last:2", "ViT", "fine-tuned (last:2)", 32),
    ],
)
def test_a_name_tells_how_a_model_begins(asked, kind, start, size):
    found = enter(asked)
    assert (found.label, found.kind, found.start, found.image_size) == (asked, kind, start, size)
    assert found.from_dict(found.to_dict()) == found


def test_a_saved_resnet_is_fine_tuned_in_full(tmp_path):
    torch.save(ResNet(ResNetConfig(18, classes=3)).state_dict(), tmp_path / "mine.pth")
    found = enter(str(tmp_path / "mine.pth"))
    assert (found.kind, found.start, found.pretrained) == ("ResNet", "fine-tuned (full)", True)
    assert "/" not in found.slug


def test_only_a_policy_after_the_last_at_is_taken_off():
    assert split_policy("org/name@main@head") == ("org/name@main", "head")
    assert split_policy("org/name@v2") == ("org/name@v2", None)


def test_a_pre_trained_resnet_that_is_not_at_hand_enters_from_scratch_and_says_so(monkeypatch):
    def offline(name):
        raise ConnectionError("no network")

    monkeypatch.setattr(entrant, "load", offline)
    said = []
    found = enter("torchvision:resnet152@full", said.append)
    assert (found.model, found.kind, found.start) == ("resnet152", "ResNet", "from scratch")
    assert "begins from scratch: no network" in found.notes[0]
    assert len(said) == 1
    with pytest.raises(ConnectionError):  # nobody wants an untrained ViT-B/16 instead
        enter("torchvision:vit_b_16@attention")


def test_a_policy_that_freezes_means_the_checkpoint_of_that_name_and_none_is_refused():
    with pytest.raises(ValueError, match="no model is known by the name 'vit_pico_patch2_8'"):
        enter("vit_pico_patch2_8@head")
    with pytest.raises(ValueError, match="fresh weights: name a checkpoint, such as torchvision:resnet18@head"):
        enter("resnet18@head")


def test_a_misspelled_name_is_an_error():
    with pytest.raises(ValueError, match="no model is known"):
        enter("vit_micro_patch4_23")
