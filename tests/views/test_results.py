"""What views compute is what the model does: each result against the truth, and what a figure shows of it."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.Image import Transpose

from conftest import noise
from vitreous.data.preprocess import default_preprocess
from vitreous.data.sample_photos import samples
from vitreous.inside.artifacts import Artifacts, with_registers
from vitreous.inside.attention import entropy, mean_distance
from vitreous.inside.capture import capture
from vitreous.inside.intervene import intervene
from vitreous.inside.methods import METHODS
from vitreous.inside.position_similarity import position_similarity
from vitreous.models.resnet import ResNet, ResNetConfig
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.pages.explanation import Explanation
from vitreous.views import trust
from vitreous.views.inspection import Choice, Inspection
from vitreous.views.maps import heat_map
from vitreous.views.registry import VIEWS
from vitreous.views.tokens import _with_registers
from vitreous.weights.card import Card
from vitreous.weights.load import load


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = noise(ViT(ViTConfig(image_size=(24, 40), patch_size=(8, 4), width=48, depth=3, heads=4, classes=7)))
    model.card = Card(name="tiny", preprocess=default_preprocess(model.config), class_names=tuple("abcdefg"))
    return model


@pytest.fixture(scope="module")
def photo():
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8))


@pytest.fixture
def whole(model, photo):
    """All attention: [blocks heads t t]."""
    with torch.no_grad(), capture(model) as seen:
        model(Inspection(model, photo).x)
    return seen.stack("attention")[:, 0]


@pytest.fixture
def compute(model, photo):
    """A view's results for a choice; one alone as it is."""

    def computed(name, **choice):
        found = VIEWS[name].results(Inspection(model, photo, Choice(**choice)))
        return found[""] if list(found) == [""] else found

    return computed


def test_predictions_are_ranked(model, photo, compute):
    found, logits = compute("predictions"), Inspection(model, photo).logits
    order = logits.argsort(descending=True)
    assert found.names == ["abcdefg"[i] for i in order]
    assert found.logits.tolist() == logits[order].tolist()
    assert found.values.sum() == pytest.approx(1)


@pytest.mark.parametrize("head", [None, 2])
def test_the_matrix_is_the_chosen_blocks_and_heads(head, compute, whole):
    found = {scale: result.shown() for scale, result in compute("attention-matrix", block=1, head=head).items()}
    wanted = whole[1].mean(0) if head is None else whole[1, head]
    np.testing.assert_allclose(found["raw"], wanted, atol=1e-5)
    np.testing.assert_allclose(found["log"], wanted.clamp_min(1e-6).log10(), atol=1e-3)
    np.testing.assert_allclose(found["layer-norm"].mean(-1), 0, atol=1e-5)
    assert not np.allclose(found["raw"], found["raw"].T)


def test_the_scale_can_be_chosen(compute):
    assert compute("attention-matrix", scale="log").keys() == {"log"}


def test_rows_are_those_of_the_query_block_and_heads(compute, whole):
    found = compute("attention-rows", block=0, heads=(3, 1), query=12)
    wanted = whole[0, :, 12, 1:].reshape(4, 3, 10)
    np.testing.assert_allclose(found.shown(("head",)), wanted, atol=1e-5)
    assert found.chosen == (3, 1)
    assert found.query_patch == (1, 1)
    assert found.filled_title == "Attention of the patch (1, 1), block 0"


def test_maps_of_every_block_and_head(compute, whole):
    found = compute("attention-maps")
    rows = whole[:, :, 0, 1:].reshape(3, 4, 3, 10)
    np.testing.assert_allclose(found[""].shown(("block",)), rows.mean(1), atol=1e-5)
    np.testing.assert_allclose(found["heads"].shown(("block", "head")), rows, atol=1e-5)


def test_removal_shows_contributions_to_every_likely_class_and_their_errors(model, photo):
    model = deepcopy(model)
    with torch.no_grad():
        model.head.weight *= 30  # else patches change the log-odds by thousandths, and rounding is a part of that
    inspection = Inspection(model, photo)
    found = VIEWS["removal"].results(inspection)
    assert list(found) == ["", "error"]
    assert len(found[""].values) == len(found["error"].values) == len(inspection.classes) == 5
    for index, values in zip(inspection.classes, found[""].values, strict=True):  # as if each were asked for alone
        alone = METHODS["removal-64"](model, inspection.x, index)
        np.testing.assert_allclose(values, alone.flatten(), atol=1e-4 * np.abs(values).max())
    assert (found["error"].values > 0).all()


def test_more_passes_are_taken_where_they_are_asked_for(model, photo):
    assert Inspection(model, photo, Choice(passes=32)).removal.passes == 32
    assert "(64 passes" in VIEWS["removal"].results(Inspection(model, photo))[""].title
    for wrong in ("much", 1, "1"):
        with pytest.raises(ValueError, match="passes must be quick, middle, thorough or a number of at least 2, got"):
            Inspection(model, photo, Choice(passes=wrong))


def test_distance_and_entropy(model, compute, whole):
    wanted = torch.stack([mean_distance(block, model.layout, (8, 4)) for block in whole])
    np.testing.assert_allclose(compute("distance").values, wanted, rtol=1e-4)
    np.testing.assert_allclose(compute("entropy").values, entropy(whole), rtol=1e-4)
    assert compute("entropy").ceiling == pytest.approx(np.log(31))


def test_ablation_is_of_the_target_with_its_sign(model, photo, compute):
    inspection, found = Inspection(model, photo), compute("ablation", target=2)
    effect = found["heads"].values
    with torch.no_grad(), intervene(model, heads_off=[(2, 1)]):
        changed = model(inspection.x)[0, 2]
    assert effect[2, 1] == pytest.approx((changed - inspection.logits[2]).item(), abs=1e-4)
    block, head = np.unravel_index(np.abs(effect).argmax(), effect.shape)
    assert found[""].names[0] == f"block {block}, head {head}"
    assert found[""].positions[0] == (block, head)
    assert found[""].values[0] == pytest.approx(effect[block, head])


def test_the_lens_follows_the_target(model, photo, compute):
    found, probabilities = compute("lens", target=4), Inspection(model, photo).logits.softmax(-1)
    assert found.curves[0, -1] == pytest.approx(probabilities[4].item(), abs=1e-5)
    assert found.names["class"][0] == "e"
    assert found.probabilities[-1] == pytest.approx(probabilities.max().item(), abs=1e-5)
    assert found.answers[-1] == "abcdefg"[probabilities.argmax()]
    assert found.steps == ["embedding", "block 0", "block 1", "block 2"]


def test_importance_is_of_the_target_and_the_likeliest_others(model, photo, compute):
    from vitreous.inside.head_importance import head_importance

    found, inspection = compute("importance", target=4), Inspection(model, photo)
    np.testing.assert_allclose(found.shown(), head_importance(model, inspection.x, 4), rtol=1e-4)
    assert found.filled_title == "How much the logit of e depends on each head"
    assert len(found.names["class"]) == 5


def test_positions_are_those_of_the_query(model, compute):
    found = compute("positions", query=12)["one"]
    np.testing.assert_allclose(found.shown(), position_similarity(model)[1, 1], atol=1e-6)
    assert found.query_patch == (1, 1)


def test_maps_heed_block_query_target_and_rollouts_options(model, photo):
    def changed(name, **options):
        chosen, default = (heat_map(name, Inspection(model, photo, Choice(**o))) for o in (options, {}))
        return not torch.allclose(chosen, default)

    for name in ("relevance", "gradient × attention", "CAM", "integrated gradients"):
        assert any(changed(name, target=target) for target in range(7)), name
    for name in ("attention", "gradient × attention", "CAM"):
        assert changed(name, block=0), name
    for name in ("attention", "rollout"):
        assert changed(name, query=5), name
    for options in ({"fusion": "max"}, {"discard": 0.5}, {"residual": 0.9}):
        assert changed("rollout", **options)


def test_the_view_of_rollout_is_its_map(model, photo, compute):
    for options in ({}, {"query": 12}, {"fusion": "max", "discard": 0.5}):
        wanted = heat_map("rollout", Inspection(model, photo, Choice(**options)))
        np.testing.assert_allclose(compute("rollout", **options).shown(), wanted, atol=1e-6)


def test_rollouts_options_stand_in_its_title(compute):
    assert compute("rollout").filled_title == "Attention rollout"
    found = compute("rollout", fusion="max", discard=0.9, residual=0.25, query=12)
    assert found.filled_title == "Attention rollout (of the patch (1, 1), max over heads, 90% dropped, residual 0.25)"


def test_colours_and_norms_are_of_every_block(compute):
    colours, norms = compute("token-colours", block=0), compute("token-norms", block=1)
    assert colours.shown().shape == (3, 10, 3)
    assert norms.values.shape == (3, 30)
    assert norms.filled_title == "Norm of the tokens after block 1"


def test_a_resnets_filters_are_those_of_its_first_convolution(photo):
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(18, classes=5)).eval()
    model.card = Card(name="resnet", preprocess=default_preprocess(ViTConfig(image_size=64)), family="ResNet")
    found = VIEWS["filters"].results(Inspection(model, photo))[""]
    assert found.images.shape == (64, 7, 7, 3)
    assert found.title == "Filters of the first convolution"


def test_trust_is_decided_in_the_mean_colour_and_marks_maps_that_were_fitted_with_blurred_patches(compute):
    found = compute("trust")
    assert list(found) == ["", "blur", "sanity"]
    assert found[""].title.endswith("Hidden patches in the mean colour")
    assert found["blur"].title.endswith("Hidden patches blurred")
    assert "removal" in found[""].panels[0].series
    assert [name for name in found["blur"].panels[1].series if name.endswith("*")] == ["removal *"]
    assert found["blur"].verdict == "* was fitted with such images: this does not count for it."
    areas = zip(*(panel.areas.values() for panel in found[""].panels), strict=True)
    similarity = dict(zip(found["sanity"].names, found["sanity"].values, strict=True))
    assert found[""].verdict == trust.verdict(dict(zip(found[""].panels[0].areas, areas, strict=True)), similarity)


def test_trust_compares_default_maps_and_keeps_deletion_and_insertion_apart(model, photo, compute):
    found = compute("trust", block=0, query=7, target=3)
    deletion, insertion = found[""].panels
    inspection = Inspection(model, photo, Choice(target=3))
    assert set(deletion.series) == {*trust.COMPARED, *trust.BASELINES} == set(insertion.series)
    whole = inspection.logits.softmax(-1)[3].item()
    for name in deletion.series:
        removed, added = deletion.series[name], insertion.series[name]
        assert removed[0] == pytest.approx(whole, abs=1e-5)
        assert added[-1] == pytest.approx(whole, abs=1e-5)
        steps = len(removed) - 1
        assert deletion.areas[name] == pytest.approx(np.trapezoid(removed, dx=1 / steps), abs=1e-5)
        assert insertion.areas[name] == pytest.approx(np.trapezoid(added, dx=1 / steps), abs=1e-5)
    for operator, result in (("mean", found[""]), ("blur", found["blur"])):
        alone, _ = trust.curves({"attention": heat_map("attention", inspection)}, inspection, operator)
        np.testing.assert_allclose(result.panels[0].series["attention"], alone[0], atol=1e-5)
    assert found["sanity"].limits == (-1, 1)


def test_a_target_that_does_not_exist_is_refused_for_a_resnet_too(photo):
    resnet = ResNet(ResNetConfig(18, classes=5)).eval()
    resnet.card = Card(name="r", preprocess=default_preprocess(ViTConfig(image_size=64)), family="ResNet")
    with pytest.raises(ValueError, match="target 5 does not exist: this model has 0 to 4"):
        Inspection(resnet, photo, Choice(target=5))
    with pytest.raises(ValueError, match="no classes to explain"):
        Inspection(ResNet(ResNetConfig(18, classes=0)), photo, Choice(target=0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_models_of_other_number_formats_are_explained(dtype, model, photo):
    explanation = Explanation(Inspection(deepcopy(model).to(dtype), photo))
    assert len(explanation.compute()) > 15
    assert not explanation.skipped
    assert explanation.payload().to_bytes()


@pytest.mark.parametrize(
    ("areas", "similarity", "said"),
    [
        (
            {"relevance": (0.1, 0.6), "CAM": (0.2, 0.5), "random": (0.4, 0.2), "centre": (0.3, 0.3)},
            {"relevance": 0.1, "CAM": 0.2},
            "Relevance is the most faithful here (insertion less deletion).",
        ),
        (
            {"relevance": (0.1, 0.6), "CAM": (0.5, 0.1), "rollout": (0.6, 0.1), "random": (0.4, 0.3)},
            {"relevance": 0.1},
            "Relevance is the most faithful here (insertion less deletion); CAM and rollout are no better than random "
            "patches.",
        ),
        (
            {"relevance": (0.5, 0.3), "random": (0.4, 0.2), "centre": (0.1, 0.6)},
            {"relevance": 0.1},
            "No map is better than the centre here: none of them finds what the answer rests on.",
        ),
        (
            {"attention": (0.1, 0.6), "centre": (0.3, 0.3)},
            {"attention": 0.83},
            "Attention is the most faithful here (insertion less deletion). But its map is much the same with random "
            "weights (rank correlation 0.83): be careful.",
        ),
    ],
)
def test_the_verdict_names_the_best_map_and_those_that_fail(areas, similarity, said):
    assert trust.verdict(areas, similarity) == said


def test_without_outlying_tokens_one_line_says_that_there_are_no_registers(compute):
    ((name, said),) = compute("registers").rows
    assert name == "test-time registers"
    assert said.startswith("none: no patch's token is an outlier")


def test_distances_entropy_and_similarity_are_those_of_the_patches_left(model, photo):
    """As in a model of one row of patches less, whose image and positions are cut alike."""
    whole, off = Inspection(model, photo), range(20, 30)
    shorter = ViT(replace(model.config, image_size=(16, 40))).eval()
    shorter.load_state_dict(
        {name: value[:, :-10] if name == "pos_embed" else value for name, value in model.state_dict().items()}
    )
    shorter.card = model.card
    cut = Inspection(shorter, photo)
    cut.x = whole.x[:, :, :16]
    with intervene(model, patches_off=off):
        for name in ("distance", "entropy", "block-similarity"):
            found, expected = (VIEWS[name].results(one)[""] for one in (whole, cut))
            np.testing.assert_allclose(found.values, expected.values, rtol=1e-4, atol=1e-5, err_msg=name)
        colours = [VIEWS["token-colours"].results(one)[""].values[:, :20] for one in (whole, cut)]
    assert np.abs(colours[0] - colours[1]).mean() < 0.1


def test_trust_compares_with_random_weights_under_the_same_intervention():
    inspection = Inspection(model := load("packaged:cifar10"), samples()["chelsea"])
    with intervene(model, patches_off=range(32)):
        fresh = trust.faithfulness.reinitialised(model)
        with intervene(fresh, patches_off=range(32)):
            rollout = METHODS["rollout"](fresh, inspection.x, inspection.target).cpu()
        found = {"rollout": METHODS["rollout"](model, inspection.x, inspection.target).cpu()}
        similar = trust.similarity_to_random_weights(found, inspection)["rollout"]
    assert rollout[0, :4].abs().max() == 0  # no share of what is not there
    assert similar == trust.faithfulness.rank_correlation(found["rollout"], rollout).item()


def test_a_live_page_of_a_changed_model_is_refused(tmp_path):
    """The page holds a copy of the network, which the intervention does not change."""
    explanation = Explanation(Inspection(model := load("packaged:cifar10"), samples()["chelsea"]), "story")
    with intervene(model, heads_off=[(0, 0)]), pytest.raises(ValueError, match="save the page without live"):
        explanation.save(tmp_path / "page.html", live=True)
    assert not list(tmp_path.iterdir())


def test_registers_of_a_changed_model_are_refused_in_one_line():
    """They are shown by a copy, which the intervention does not change."""
    model = load("packaged:cifar10")
    with intervene(model, heads_off=[(0, 0)]), pytest.raises(ValueError, match="switch nothing off"):
        VIEWS["registers"].results(Inspection(model, samples()["chelsea"]))


def test_registers_are_shown_of_the_pixels_that_are_inspected():
    inspection = Inspection(load("packaged:cifar10"), samples()["chelsea"])
    inspection.view = inspection.view.transpose(Transpose.FLIP_LEFT_RIGHT)
    inspection.artifacts = Artifacts((3,), 1)
    assert torch.equal(_with_registers(inspection, [(1, 7)]).x, inspection.x)


@pytest.mark.slow
def test_registers_show_attention_before_and_after():
    model, image = load(), samples()["chelsea"]
    found = VIEWS["registers"].results(Inspection(model, image))
    assert list(found) == ["", "attention-after", "rollout-before", "rollout-after", "neurons"]
    corners = [0, 13, 182, 195]
    before, after = (found[name].values[corners].sum() for name in ("", "attention-after"))
    assert before > 0.5 > 0.06 > after
    rows = dict(found["neurons"].rows)
    assert rows["made by"] == "unit 417 of block 7, unit 189 of block 6"
    assert rows["answer"].count("Egyptian cat") == 2
    inspection = Inspection(model, image, Choice(query=101))
    found = VIEWS["registers"].results(inspection)
    assert "patch (7, 2)" in found[""].title
    with torch.no_grad(), capture(new := with_registers(model, [(7, 417), (6, 189)], 4), "attention") as seen:
        new(inspection.x)
    row = seen["blocks.11.attention"][0, :, 105, 5:].mean(dim=0)  # patches follow the registers
    np.testing.assert_allclose(found["attention-after"].values, row, atol=1e-6)
