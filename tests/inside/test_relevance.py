import pytest
import torch
from families import FAMILIES, family, images

from vitreous.inside.attention import readout
from vitreous.inside.capture import capture
from vitreous.inside.grad_cam import grad_cam
from vitreous.inside.gradients import chosen_classes
from vitreous.inside.head_importance import head_importance
from vitreous.inside.intervene import intervene
from vitreous.inside.pixel_gradients import integrated_gradients
from vitreous.inside.relevance import class_evidence, gradient_attention, relevance

BY_GRADIENT = {
    "relevance": relevance,
    "gradient_attention": gradient_attention,
    "cam": grad_cam,
    "head_importance": head_importance,
    "integrated_gradients": lambda model, x, target=None: integrated_gradients(
        model, x, target, baseline=torch.zeros(1), steps=2
    ),
}


def explicit(model, x, target):
    """Attention and its gradient, by autograd through a softmax that is written out: two lists of `[b h t t]`.

    And the weights `[b t]` with which the head reads the tokens: of an attention pool, (∇A ⊙ A)⁺.
    """
    kept = {}

    def keep(layer):
        def change(attention):
            attention.retain_grad()
            kept[layer] = attention
            return attention

        return change

    layers = range(model.config.depth)
    changes = {f"blocks.{layer}.attention": keep(layer) for layer in layers}
    changes |= {"pool.attention": keep("pool")} if model.attn_pool is not None else {}
    with intervene(model, replace=changes):
        model(x)[:, target].sum().backward()
    model.zero_grad()
    pool = (kept["pool"].grad * kept["pool"].detach()).clamp_min(0) if "pool" in kept else None
    row = readout(model, pool).double().expand(len(x), -1)
    return [kept[layer].detach() for layer in layers], [kept[layer].grad for layer in layers], row


@pytest.mark.parametrize("name", FAMILIES)
def test_relevance_against_the_papers_update_on_whole_matrices(name):
    model = family(name).double()
    x, tokens, largest = images(model), model.layout.tokens, 0.0
    for target in range(model.config.classes):  # of one class all evidence may be negative
        attention, gradients, row = explicit(model, x, target)
        total = torch.eye(tokens).double().expand(2, tokens, tokens)
        for weights, gradient in zip(attention, gradients, strict=True):
            positive = (gradient * weights).clamp_min(0).mean(dim=1)
            total = total + positive @ total  # Chefer, Gur & Wolf 2021, eq. 5 and 6
        if model.attn_pool is None:  # whose query is no token
            total = total - torch.eye(tokens)
        expected = torch.einsum("b t, b t s -> b s", row, total)
        largest = max(largest, expected.abs().max())
        torch.testing.assert_close(relevance(model, x, target), model.layout.to_grid(expected))
    assert largest > 1e-4


CHANGES = {
    "heads off": {"heads_off": [(0, 0), (1, 1)]},
    "heads weighted": {"head_weights": torch.tensor([0.5])},
    "mixed replaced": {"replace": {"blocks.1.mixed": lambda value: 0.25 * value}},
    "patches off": {"patches_off": [1]},
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("change", CHANGES)
def test_relevance_of_a_changed_model_against_autograd(name, change):
    """A head that is off has no evidence: the gradient of its attention is 0, whatever its `mixed` would do."""
    model = family(name).double()
    x, tokens, options = images(model), model.layout.tokens, dict(CHANGES[change])
    if "head_weights" in options:
        options["head_weights"] = options["head_weights"].expand(model.config.depth, model.config.heads)
    with intervene(model, **options):
        attention, gradients, row = explicit(model, x, target=1)
        found, one = relevance(model, x, 1), gradient_attention(model, x, 1, layer=1)
        by_class = class_evidence(model, x[:1], [1], layer=1)
    total = torch.eye(tokens).double().expand(2, tokens, tokens)
    for weights, gradient in zip(attention, gradients, strict=True):
        positive = (gradient * weights).clamp_min(0).mean(dim=1)
        total = total + positive @ total
    total = total - torch.eye(tokens) if model.attn_pool is None else total
    expected = model.layout.to_grid(torch.einsum("b t, b t s -> b s", row, total))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(by_class.relevance, expected[:1])
    matrix = (attention[1] * gradients[1]).clamp_min(0).mean(dim=1)
    expected = model.layout.to_grid(torch.einsum("b t, b t s -> b s", row, matrix))
    torch.testing.assert_close(one, expected)
    torch.testing.assert_close(by_class.gradient_attention, expected[:1])
    if change == "heads off":
        assert by_class.head_importance[0, 1, 1] == 0


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("layer", [-1, 1])
def test_gradient_attention_against_autograd(name, layer):
    model = family(name).double()
    x = images(model)
    attention, gradients, row = explicit(model, x, target=1)
    matrix = (attention[layer] * gradients[layer]).clamp_min(0).mean(dim=1)
    expected = model.layout.to_grid(torch.einsum("b t, b t s -> b s", row, matrix))
    assert expected.max() > (1e-4 if model.attn_pool is None else 1e-6)
    torch.testing.assert_close(gradient_attention(model, x, 1, layer=layer), expected)


def test_the_captured_attention_gradient_is_autograds():
    model = family("registers").double()
    x = images(model)
    _, gradients, _ = explicit(model, x, target=2)
    with capture(model, ["attention"], gradients=True) as seen:
        model(x)[:, 2].sum().backward()
    for layer, expected in enumerate(gradients):
        torch.testing.assert_close(seen.gradient(f"blocks.{layer}.attention"), expected)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_a_class_that_the_head_does_not_use_has_no_relevance(name):
    model = family(name)
    for head in (model.head, model.head_dist):
        if head is not None:
            head.weight[2] = 0.0
    x = images(model)
    for explain in (relevance, gradient_attention, grad_cam):
        assert not explain(model, x, 2).any()
        assert any(explain(model, x, target).any() for target in (0, 1, 3, 4))


@pytest.mark.parametrize("explain", BY_GRADIENT.values(), ids=BY_GRADIENT)
def test_gradients_of_parameters_stay_as_they_were_even_after_an_error(explain):
    model = family("class token")
    x = images(model)
    for i, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 7.0) if i % 2 else None
    explain(model, x, 1)
    with pytest.raises(ValueError, match="class from 0 to 4, got 5"):
        explain(model, x, 5)
    for i, parameter in enumerate(model.parameters()):
        assert (parameter.grad == 7.0).all() if i % 2 else parameter.grad is None
    assert x.grad is None
    assert not x.requires_grad


@pytest.mark.parametrize("explain", BY_GRADIENT.values(), ids=BY_GRADIENT)
def test_frozen_models_and_callers_without_gradients_get_the_same(explain):
    model = family("distilled")
    x = images(model)
    expected = explain(model, x, 1)
    assert not expected.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(explain(model, x, 1), expected)
    with torch.inference_mode():
        torch.testing.assert_close(explain(model, x.clone(), 1), expected)
    model.requires_grad_(False)
    torch.testing.assert_close(explain(model, x, 1), expected)


@pytest.mark.parametrize("explain", [relevance, gradient_attention, grad_cam])
def test_each_image_is_explained_by_itself_for_its_own_class(explain):
    model = family("token and mean").double()
    x = images(model, 3)
    predicted = model(x).argmax(dim=-1)
    together = explain(model, x)
    for i in range(3):
        torch.testing.assert_close(explain(model, x[i : i + 1], int(predicted[i])), together[i : i + 1])
    torch.testing.assert_close(explain(model, x, predicted), together)


def test_classes_are_one_for_all_one_for_each_or_the_predicted():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]])
    assert chosen_classes(logits).tolist() == [1, 0]
    assert chosen_classes(logits, 2).tolist() == [2, 2]
    assert chosen_classes(logits, [2, 1]).tolist() == [2, 1]
    assert chosen_classes(logits, [2]).tolist() == [2, 2]
    with pytest.raises(ValueError, match=r"one for each of 2 images, got \(3,\)"):
        chosen_classes(logits, [0, 1, 2])
    with pytest.raises(ValueError, match="class from 0 to 2, got -1"):
        chosen_classes(logits, -1)


def test_relevance_finds_the_patch_that_matters_in_a_real_model(shared):
    """An image pasted into one corner of an empty one: what speaks for its class should lie in that corner."""
    import torch.nn.functional as F
    from PIL import Image

    import vitreous

    model = vitreous.load(shared / "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    image = model.card.preprocess(Image.open(sorted((shared / "data/imagenet-val-500").rglob("*.JPEG"))[3]))
    x = torch.zeros(1, 3, 224, 224)
    x[:, :, 112:, :112] = F.interpolate(image[None], size=(112, 112), mode="bilinear", antialias=True)
    for explain in (relevance, gradient_attention):
        heat = explain(model, x)[0]
        assert heat[7:, :7].sum() / heat.sum() > 0.5  # a quarter of the image


@pytest.mark.parametrize("name", FAMILIES)
def test_several_classes_of_an_image_get_what_each_gets_alone(name):
    model = family(name).double()
    x = images(model)[:1]
    found = class_evidence(model, x, [3, 0], layer=0)
    for number, target in enumerate((3, 0)):
        torch.testing.assert_close(found.relevance[number], relevance(model, x, target)[0])
        torch.testing.assert_close(found.gradient_attention[number], gradient_attention(model, x, target, layer=0)[0])
        torch.testing.assert_close(found.head_importance[number], head_importance(model, x, target))
    assert not torch.allclose(found.relevance[0], found.relevance[1])
    with pytest.raises(ValueError, match="expected one image"):
        class_evidence(model, images(model), [0])
