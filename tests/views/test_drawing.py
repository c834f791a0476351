"""What reaches the figures is what was computed: drawing functions are replaced by one that notes its arguments."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import noise
from vitreous.inside.capture import capture
from vitreous.inside.intervene import intervene
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT, ViTConfig
from vitreous.views import drawing
from vitreous.views import maps as heat
from vitreous.views.inspection import Choice, Inspection
from vitreous.weights.card import Card, usual_preprocess


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = noise(ViT(ViTConfig(image_size=(24, 40), patch_size=(8, 4), width=48, depth=3, heads=4, classes=7)))
    model.card = Card(name="tiny", preprocess=usual_preprocess(model.config), class_names=tuple("abcdefg"))
    return model


@pytest.fixture(scope="module")
def photo():
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8))


def note(calls, name, *arguments, **options):
    calls.setdefault(name, []).append(SimpleNamespace(a=arguments, k=options))
    return name


@pytest.fixture
def drawn(monkeypatch):
    """Every draw_* of the figures, noting its arguments by name."""
    calls = {}
    for module in ("bars", "curves", "filters", "maps", "matrix", "position", "table"):
        figures = getattr(drawing, module)
        for name in dir(figures):
            if name.startswith("draw_"):
                monkeypatch.setattr(figures, name, partial(note, calls, name))
    return calls


@pytest.fixture
def whole(model, photo):
    """All attention of the inspection: [layers heads t t]."""
    with torch.no_grad(), capture(model) as seen:
        model(Inspection(model, photo).x)
    return seen.stack("attention")[:, 0]


def test_predictions_are_ranked(model, photo, drawn):
    inspection = Inspection(model, photo)
    drawing.predictions(inspection)
    labels, probabilities, logits = drawn["draw_predictions"][0].a
    order = inspection.logits.argsort(descending=True)
    assert labels == ["abcdefg"[i] for i in order]
    assert logits == inspection.logits[order].tolist()
    assert sum(probabilities) == pytest.approx(1)


@pytest.mark.parametrize("head", [None, 2])
def test_the_matrix_is_the_chosen_layers_and_heads(head, model, photo, drawn, whole):
    drawing.attention_matrix(Inspection(model, photo, Choice(layer=1, head=head)))
    ways = {call.k["scale"]: call.a[0] for call in drawn["draw_matrix"]}
    wanted = whole[1].mean(0) if head is None else whole[1, head]
    np.testing.assert_allclose(ways["raw"], wanted, atol=1e-5)
    np.testing.assert_allclose(ways["log"], wanted.clamp_min(1e-6).log10(), atol=1e-3)
    np.testing.assert_allclose(ways["layer-norm"].mean(-1), 0, atol=1e-5)
    assert not np.allclose(ways["raw"], ways["raw"].T)


def test_rows_are_those_of_the_query_layer_and_heads(model, photo, drawn, whole):
    drawing.attention_rows(Inspection(model, photo, Choice(layer=0, heads=(3, 1), query=12)))
    call = drawn["draw_maps"][0]
    np.testing.assert_allclose(call.a[1], whole[0, [3, 1], 12, 1:].reshape(2, 3, 10), atol=1e-5)
    assert call.a[2] == ["head 3", "head 1"]
    assert call.k["marked"] == (1, 1)


def test_maps_of_every_block_and_head(model, photo, drawn, whole):
    drawing.attention_maps(Inspection(model, photo))
    rows = whole[:, :, 0, 1:].reshape(3, 4, 3, 10)
    np.testing.assert_allclose(drawn["draw_maps"][0].a[1], rows.mean(1), atol=1e-5)
    np.testing.assert_allclose(drawn["draw_grid"][0].a[0], rows, atol=1e-5)


def test_distance_and_entropy(model, photo, drawn, whole):
    from vitreous.inside.attention import entropy, mean_distance

    inspection = Inspection(model, photo)
    drawing.distance(inspection)
    drawing.entropy(inspection)
    wanted = torch.stack([mean_distance(layer, model.layout, (8, 4)) for layer in whole])
    np.testing.assert_allclose(drawn["draw_distance"][0].a[0], wanted, rtol=1e-4)
    np.testing.assert_allclose(drawn["draw_entropy"][0].a[0], entropy(whole), rtol=1e-4)
    assert drawn["draw_entropy"][0].k["ceiling"] == pytest.approx(np.log(31))


def test_ablation_is_of_the_target_with_its_sign(model, photo, drawn):
    inspection = Inspection(model, photo, Choice(target=2))
    drawing.ablation(inspection)
    effect = drawn["draw_layers_heads"][0].a[0]
    with torch.no_grad(), intervene(model, heads_off=[(2, 1)]):
        changed = model(inspection.x)[0, 2]
    assert effect[2, 1] == pytest.approx((changed - inspection.logits[2]).item(), abs=1e-4)
    names, values = drawn["draw_ranking"][0].a
    layer, head = np.unravel_index(np.abs(effect).argmax(), effect.shape)
    assert names[0] == f"block {layer}, head {head}"
    assert values[0] == pytest.approx(effect[layer, head])


def test_the_lens_follows_the_target(model, photo, drawn):
    inspection = Inspection(model, photo, Choice(target=4))
    drawing.logit_lens(inspection)
    labels, best, curve = drawn["draw_lens"][0].a
    probabilities = inspection.logits.softmax(-1)
    assert curve[-1] == pytest.approx(probabilities[4].item(), abs=1e-5)
    assert best[-1] == pytest.approx(probabilities.max().item(), abs=1e-5)
    assert labels[-1] == "abcdefg"[probabilities.argmax()]
    assert drawn["draw_lens"][0].k["layers"] == ["embedding", "block 0", "block 1", "block 2"]


def test_positions_are_those_of_the_query(model, photo, drawn):
    from vitreous.inside.position_similarity import position_similarity

    drawing.positions(Inspection(model, photo, Choice(query=12)))
    call = drawn["draw_similarity_one"][0]
    np.testing.assert_allclose(call.a[0], position_similarity(model)[1, 1], atol=1e-6)
    assert call.k["place"] == (1, 1)


def test_maps_heed_layer_query_target_and_rollouts_options(model, photo):
    def changed(name, **options):
        chosen, usual = (heat.heat(name, Inspection(model, photo, Choice(**o))) for o in (options, {}))
        return not torch.allclose(chosen, usual)

    for name in ("relevance", "gradient × attention", "CAM", "integrated gradients"):
        assert any(changed(name, target=target) for target in range(7)), name
    for name in ("attention", "gradient × attention", "CAM"):
        assert changed(name, layer=0), name
    for name in ("attention", "rollout"):
        assert changed(name, query=5), name
    for options in ({"fusion": "max"}, {"discard": 0.5}, {"residual": 0.9}):
        assert changed("rollout", **options)


def test_rollouts_options_stand_in_its_title(model, photo, drawn):
    draw = drawing.one_map("rollout", "Attention rollout", "share")
    draw(Inspection(model, photo))
    draw(Inspection(model, photo, Choice(fusion="max", discard=0.9, residual=0.25, query=12)))
    titles = [call.k["title"] for call in drawn["draw_map"]]
    assert titles[0] == "Attention rollout"
    assert titles[1] == "Attention rollout (of the patch (1, 1), max over heads, 90% dropped, shortcut's share 0.25)"


def test_trust_compares_usual_maps_and_keeps_deletion_and_insertion_apart(model, photo, drawn):
    drawing.trust(Inspection(model, photo, Choice(layer=0, query=7, target=3)))
    curves, areas = drawn["draw_faithfulness"][0].a
    inspection = Inspection(model, photo, Choice(target=3))
    assert set(curves) == {*heat.MAPS, *heat.BLIND}
    whole = inspection.logits.softmax(-1)[3].item()
    for name, (deletion, insertion) in curves.items():
        assert deletion[0] == pytest.approx(whole, abs=1e-5)
        assert insertion[-1] == pytest.approx(whole, abs=1e-5)
        steps = len(deletion) - 1
        assert areas[name][0] == pytest.approx(np.trapezoid(deletion, dx=1 / steps), abs=1e-5)
        assert areas[name][1] == pytest.approx(np.trapezoid(insertion, dx=1 / steps), abs=1e-5)
    usual, _ = heat.curves({"attention": heat.heat("attention", inspection)}, inspection)
    mean, _ = heat.curves({"attention": heat.heat("attention", inspection)}, inspection, baseline="mean")
    assert any(np.allclose(curves["attention"][0], found[0], atol=1e-5) for found in (usual, mean))
    assert drawn["draw_ranking"][0].k["limits"] == (-1, 1)


def test_a_target_that_does_not_exist_is_refused_for_a_resnet_too(photo):
    resnet = ResNet(ResNetConfig(18, classes=5)).eval()
    resnet.card = Card(name="r", preprocess=usual_preprocess(ViTConfig(image_size=64)), family="ResNet")
    with pytest.raises(ValueError, match="target 5 does not exist: this model has target 0 to 4"):
        Inspection(resnet, photo, Choice(target=5))
    with pytest.raises(ValueError, match="no classes to explain"):
        Inspection(ResNet(ResNetConfig(18, classes=0)), photo, Choice(target=0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_models_of_other_number_formats_are_drawn(dtype, model, photo):
    from copy import deepcopy

    from vitreous.pages.explanation import explain

    page = explain(Inspection(deepcopy(model).to(dtype), photo))
    assert not page.skipped
    assert len(page.sections) > 15
