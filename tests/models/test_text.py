"""The text tower: who attends to whom, which token is read, and sentences as classes of a ViT."""

import pytest
import torch
from families import family, images

from conftest import noise
from vitreous.models.text import SentenceHead, TextConfig, TextTower, with_sentences

SMALL = {"vocabulary": 30, "context": 8, "width": 24, "depth": 2, "heads": 2, "outputs": 12}
TOKENS = torch.tensor([[28, 5, 7, 29, 0, 0, 0, 0], [28, 9, 29, 0, 0, 0, 0, 0]])


def tower(**changes):
    return noise(TextTower(TextConfig(**SMALL | changes)))


@torch.no_grad()
def test_tokens_after_the_end_do_not_change_a_causal_tower():
    model, other = tower(), TOKENS.clone()
    other[:, 4:] = 3
    assert torch.allclose(model(TOKENS), model(other), atol=1e-6)


@torch.no_grad()
def test_padding_changes_a_tower_that_attends_to_all():
    model, other = tower(causal=False, pool="last"), TOKENS.clone()
    other[:, 4:] = 3
    assert not torch.allclose(model(TOKENS), model(other), atol=1e-2)


@torch.no_grad()
def test_the_largest_and_the_first_end_token_are_the_same_place():
    model = tower()
    model.config, largest = TextConfig(**SMALL, pool="end", end_token=29), model(TOKENS)
    assert torch.equal(model(TOKENS), largest)
    padded = torch.where(TOKENS == 0, 29, TOKENS)  # padding with the end token, as transformers does
    assert torch.allclose(model(padded), largest, atol=1e-6)


@torch.no_grad()
def test_a_sentence_head_is_the_scaled_cosine():
    head = SentenceHead(torch.nn.Identity(), torch.tensor([[2.0, 0.0], [3.0, 4.0]]), torch.tensor(4.0).log(), None)
    assert torch.allclose(head(torch.tensor([[0.0, 7.0]])), torch.tensor([[0.0, 3.2]]), atol=1e-6)
    biased = SentenceHead(torch.nn.Identity(), torch.eye(2), torch.tensor(0.0), torch.tensor(-3.0))
    assert torch.allclose(biased(torch.tensor([[5.0, 0.0]])), torch.tensor([[-2.0, -3.0]]))


@pytest.mark.parametrize("kind", ["class token", "attention pool"])
@torch.no_grad()
def test_a_vit_with_sentences_shares_its_weights_and_leaves_the_other_as_it_was(kind):
    model = family(kind, classes=0 if kind == "attention pool" else 12)
    x = images(model)
    before, width = model(x), model.config.classes or model.config.width
    worded = with_sentences(model, torch.randn(3, width), torch.tensor(1.0))
    assert worded(x).shape == (2, 3)
    assert torch.equal(model(x), before)
    assert worded.blocks is model.blocks


def test_features_of_another_space_are_refused():
    with pytest.raises(ValueError, match=r"expected features of sentences \[s 12\]"):
        with_sentences(family("class token", classes=12), torch.randn(3, 7), torch.tensor(1.0))
    with pytest.raises(ValueError, match="a dense head has no features of the whole image"):
        with_sentences(family("a pixel, linear", whole=True), torch.randn(3, 5), torch.tensor(1.0))


@pytest.mark.parametrize(
    ("field", "value"),
    [("vocabulary", 0), ("context", 2**30), ("heads", 5), ("end_token", 30), ("projection", "none"), ("depth", 0)],
)
def test_a_config_that_cannot_be_is_refused(field, value):
    with pytest.raises(ValueError, match=field if field != "projection" else "outputs must be the width 24"):
        TextConfig(**SMALL | {field: value})
