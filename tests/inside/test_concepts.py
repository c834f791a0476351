"""Concepts that were planted are found, switching one off takes its part away and nothing else, and seeds repeat."""

import copy

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import vitreous
from vitreous.inside.capture import capture
from vitreous.inside.concepts import (
    SparseAutoencoder,
    centred,
    collect_tokens,
    learn_concepts,
    measure_concepts,
    normalise,
    strongest,
    switched_off,
    unused_share,
)
from vitreous.models.variants import variant
from vitreous.models.vit import ViT


def planted(count=6000, width=24, concepts=32, active=2):
    """Tokens that are sums of a few of many directions."""
    generator = torch.Generator().manual_seed(1)
    directions = F.normalize(torch.randn(concepts, width, generator=generator), dim=-1)
    weights = torch.zeros(count, concepts)
    chosen = torch.rand(count, concepts, generator=generator).argsort(dim=1)[:, :active]
    weights.scatter_(1, chosen, 1 + torch.rand(count, active, generator=generator))
    return weights @ directions, directions


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = ViT(variant("vit_femto_patch4_32")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.slow
def test_planted_directions_are_found():
    tokens, directions = planted()
    found = learn_concepts(tokens[:5000], concepts=48, active=2, steps=500)
    assert found.explained(tokens[5000:]) > 0.85
    directions = F.normalize(
        directions - directions.mean(dim=1, keepdim=True), dim=-1
    )  # as normalised tokens have them
    nearest = (directions @ found.directions.T).max(dim=1).values  # [planted]
    assert (nearest > 0.9).float().mean() > 0.8
    assert found.directions.norm(dim=1).sub(1).abs().max() < 1e-5


def test_tokens_without_structure_are_not_explained_by_a_few_concepts():
    tokens = torch.randn(5000, 24, generator=torch.Generator().manual_seed(0))
    assert learn_concepts(tokens[:4000], concepts=48, active=2, steps=300).explained(tokens[4000:]) < 0.5


def test_the_same_seed_learns_the_same_and_the_callers_randomness_stays():
    tokens, _ = planted(500)
    torch.manual_seed(5)
    first = learn_concepts(tokens, 16, 2, steps=20)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert after == torch.rand(1)
    second = learn_concepts(tokens, 16, 2, steps=20)
    assert torch.equal(first.directions, second.directions)
    assert not torch.equal(first.directions, learn_concepts(tokens, 16, 2, steps=20, seed=1).directions)


def test_a_concept_is_taken_away_where_it_is_active_and_nowhere_else():
    autoencoder = SparseAutoencoder(4, 2, 1)
    with torch.no_grad():
        autoencoder.directions.copy_(torch.tensor([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0]]) / 2**0.5)
        autoencoder.readers.copy_(autoencoder.directions)
    tokens = torch.tensor(
        [[5.0, 1.0, 3.0, 3.0], [3.0, 3.0, 8.0, -2.0]]
    )  # 3 and twice √2 · the first; five times the second
    assert (autoencoder.activations(tokens) > 0).tolist() == [[True, False], [False, True]]
    without = autoencoder.without(tokens, [0])
    assert torch.allclose(without[0], torch.full((4,), 3.0), atol=1e-5)
    assert torch.equal(without[1], tokens[1])
    other = torch.tensor([0.0, 0.0, 0.0, 1.0])
    moved = autoencoder.without(tokens, [0], other)[0] - tokens[0]
    assert torch.allclose(moved.norm(), (without[0] - tokens[0]).norm())  # as much, in another direction
    assert moved[:3].abs().max() == 0


def test_a_constant_token_stays_finite():
    autoencoder = SparseAutoencoder(4, 8, 2)
    assert autoencoder.without(torch.zeros(3, 4), [0]).isfinite().all()
    assert torch.equal(normalise(torch.full((1, 4), 7.0))[0], torch.zeros(1, 4))


def test_no_more_concepts_can_be_active_than_there_are():
    with pytest.raises(ValueError, match="9 of 8 concepts cannot be active"):
        learn_concepts(torch.randn(20, 4), concepts=8, active=9)
    assert strongest(torch.tensor([[1.0, 2.0, -3.0]]), 3).tolist() == [[1.0, 2.0, 0.0]]


def test_tokens_are_those_of_the_block_without_the_class_token(model):
    images = list(torch.randn(5, 3, 32, 32))
    tokens, logits = collect_tokens(model, images, block=2, batch=2)
    with torch.inference_mode(), capture(model, "output", layers=[2]) as seen:
        expected = model(torch.stack(images))
    assert torch.allclose(tokens, seen["blocks.2.output"][:, 1:], atol=1e-5)
    assert torch.allclose(logits, expected, atol=1e-5)


def test_switched_off_is_the_models_own_pass_with_that_part_missing(model):
    x = torch.randn(2, 3, 32, 32)
    tokens, logits = collect_tokens(model, list(x), block=1)
    autoencoder = learn_concepts(tokens.flatten(0, 1), concepts=16, active=2, steps=30)
    concept = int(autoencoder.activations(tokens).sum(dim=(0, 1)).argmax())
    with torch.inference_mode():
        with switched_off(model, 1, autoencoder, concept), capture(model, "input", layers=[2]) as seen:
            without = model(x)
        assert torch.allclose(seen["blocks.2.input"][:, 1:], autoencoder.without(tokens, [concept]), atol=1e-4)
        assert not torch.allclose(without, logits)
        assert torch.allclose(model(x), logits, atol=1e-5)  # and the model is as before


def test_effects_are_measured_on_images_that_were_held_out(model):
    images = list(torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(3)))
    learned = [i % 2 == 0 for i in range(20)]
    tokens, logits = collect_tokens(model, images, block=1)
    autoencoder = learn_concepts(tokens[::2].flatten(0, 1), concepts=16, active=2, steps=30)
    done = []
    found = measure_concepts(
        model, images, 1, autoencoder, tokens, logits, learned, 4, lambda *counts: done.append(counts)
    )
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert found == sorted(found, key=lambda each: each.effect.mean - each.random)
    concept = found[0]
    held_out = [i for i, _ in concept.places if not learned[i]][:8]
    with torch.inference_mode(), switched_off(model, 1, autoencoder, concept.index):
        changes = centred(model(torch.stack([images[i] for i in held_out]))) - centred(logits[held_out])
    assert concept.effect.changes == pytest.approx(changes.mean(dim=0)[list(concept.effect.classes)].tolist(), abs=1e-5)
    strengths = autoencoder.activations(tokens)[..., concept.index]
    assert [strengths[i].argmax().item() for i, _ in concept.places] == [patch for _, patch in concept.places]
    assert concept.frequency == pytest.approx((strengths > 0).float().mean().item())


def test_concepts_switched_off_together_lose_the_sum_of_their_parts_in_any_order(model):
    x = torch.randn(3, 3, 32, 32)
    tokens, logits = collect_tokens(model, list(x), block=1)
    autoencoder = learn_concepts(tokens.flatten(0, 1), concepts=16, active=4, steps=30)
    first, second = autoencoder.activations(tokens).sum(dim=(0, 1)).argsort(descending=True)[:2].tolist()
    parts = [tokens - autoencoder.without(tokens, [each]) for each in (first, second)]
    together = tokens - autoencoder.without(tokens, [first, second])
    assert min(part.abs().max() for part in parts) > 0.01
    torch.testing.assert_close(together, parts[0] + parts[1])
    with torch.inference_mode():
        with switched_off(model, 1, autoencoder, [first, second]):
            found = model(x)
        with switched_off(model, -3, autoencoder, [second, first, first]):  # of 4 blocks
            assert torch.equal(model(x), found)
    assert not torch.allclose(found, logits)


@pytest.mark.parametrize(
    ("block", "concept", "message"),
    [
        (4, 0, "no block 4"),
        (1, 16, "no concept 16"),
        (1, [0, -17], "no concept -17"),
        (1, True, "index of a concept"),
        (1, None, "index of a concept"),
    ],
)
def test_a_concept_that_there_is_not_is_one_line_before_the_model_runs(model, block, concept, message):
    with pytest.raises(ValueError, match=message), switched_off(model, block, SparseAutoencoder(32, 16, 2), concept):
        pass


def test_concepts_of_a_model_of_another_width_are_refused(model):
    with pytest.raises(ValueError, match="directions of 12 dimensions"):
        switched_off(model, 1, SparseAutoencoder(12, 16, 2), 0)


def test_concepts_of_a_half_precision_model_are_learned_in_single_precision(model):
    half, x = copy.deepcopy(model).half(), torch.randn(4, 3, 32, 32)
    tokens, _ = collect_tokens(half, list(x.half()), block=1)
    assert tokens.dtype == torch.float16
    with torch.inference_mode():  # the caller's mode does not stop the learning
        autoencoder = learn_concepts(tokens.flatten(0, 1), concepts=16, active=2, steps=30)
    assert autoencoder.directions.dtype == torch.float32
    assert 0 < autoencoder.explained(tokens.flatten(0, 1)) < 1
    without = autoencoder.without(tokens, [0])
    assert without.dtype == torch.float16
    assert without.isfinite().all()


def test_tokens_that_are_not_finite_are_an_error():
    tokens = torch.randn(100, 8)
    tokens[3, 2] = float("nan")
    with pytest.raises(ValueError, match="not all finite"):
        learn_concepts(tokens, concepts=8, active=2)


def photos(count=12):
    return [Image.effect_noise((40, 40), 20 + 5 * i).convert("RGB") for i in range(count)]


QUICK = {"concepts": 32, "steps": 3, "measured": 4}


def packaged():
    return vitreous.load("packaged:cifar10")


@pytest.mark.parametrize(
    ("classes", "named"),
    [(3, 1), pytest.param(2, 1, marks=pytest.mark.slow), pytest.param(9, 3, marks=pytest.mark.slow)],
)
def test_at_most_half_of_the_classes_stand_for_a_concept(classes, named):
    """The mean change over all classes is 0 by construction."""
    model = packaged()
    model.reset_classifier(classes)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    concepts = vitreous.find_concepts(photos(30), model, 3, **QUICK)
    assert concepts.found
    assert all(len(each.effect.classes) == named for each in concepts.found)
    assert max(abs(each.effect.mean) for each in concepts.found) > 1e-3
    assert concepts.class_names == [f"class {i}" for i in range(classes)]


@pytest.mark.parametrize("classes", [0, 1])
def test_concepts_need_two_classes(classes):
    model = packaged()
    model.reset_classifier(classes)
    with pytest.raises(ValueError, match="two or more"):
        vitreous.find_concepts(photos(), model, **QUICK)


def test_a_block_whose_patches_no_head_reads_is_refused():
    with pytest.raises(ValueError, match="no patch after block 7 has an effect"):
        vitreous.find_concepts(photos(), packaged(), -1, **QUICK)


@pytest.mark.slow
def test_the_seed_draws_which_images_are_held_out():
    """Every fifth image of a folder may be of one kind."""
    images = photos(20)
    found = [vitreous.find_concepts(images, packaged(), 3, seed=seed, **QUICK) for seed in (0, 0, 1)]
    assert found[0].learned == 16
    assert torch.equal(found[0].autoencoder.directions, found[1].autoencoder.directions)
    assert found[0].explained == found[1].explained != found[2].explained


@pytest.mark.slow
def test_equal_images_count_once():
    images = photos(11)
    with pytest.warns(UserWarning, match="equals an image before it"):
        concepts = vitreous.find_concepts([*images, images[0]], packaged(), 3, **QUICK)
    assert len(concepts.images) == 11
    with pytest.warns(match="equals"), pytest.raises(ValueError, match="too few images to learn concepts from: 1,"):
        vitreous.find_concepts([images[0]] * 12, packaged(), 3, **QUICK)


@pytest.mark.parametrize(
    "given", [{"seed": None}, {"seed": -1}, {"seed": 2**70}, {"seed": 1.5}, {"steps": True}, {"measured": 0}]
)
def test_numbers_that_are_none_are_refused_before_the_images_are_read(given):
    with pytest.raises(ValueError, match=f"{next(iter(given))} must be a whole number of at least"):
        vitreous.find_concepts("no-such-folder", packaged(), **QUICK | given)


@pytest.mark.slow
def test_the_page_says_how_many_of_the_most_active_were_measured(tmp_path):
    images = photos(12)
    few = vitreous.find_concepts(images, packaged(), 3, concepts=2048, steps=3, measured=40)
    assert len(few.found) < few.asked == 40
    text = few.save(tmp_path / "few.html").read_text()
    assert f"Of the 40 most active concepts, {len(few.found)} are in enough images" in text
    model = packaged()
    x = torch.stack([model.card.preprocess(image) for image in images])
    with torch.inference_mode(), few.switched_off(model, [few.found[0].index]):
        changed = model(x)
    with torch.inference_mode():
        assert not torch.equal(changed, model(x))


def test_a_concept_of_one_image_alone_has_no_effect_to_measure(model):
    images = list(torch.randn(4, 3, 32, 32))
    tokens, logits = collect_tokens(model, images, block=1)
    autoencoder = learn_concepts(tokens.flatten(0, 1), concepts=16, active=2, steps=10)
    assert measure_concepts(model, images, 1, autoencoder, tokens, logits, [True, True, True, False], 4) == []
    assert unused_share(autoencoder, tokens) <= unused_share(autoencoder, tokens[:1]) < 1
