"""Token merging against the plain model and against a slow, one by one writing of the paper's text."""

import math
from functools import partial

import pytest
import torch

from conftest import noise
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.speed.token_merging import attention_and_keys, merge, merged_tokens, merging

SMALL = {"image_size": 24, "patch_size": 4, "width": 32, "depth": 3, "heads": 4, "classes": 7}
KINDS = [
    {},
    {"distillation_token": True, "distillation_head": True},
    {"registers": 3},
    {"pool": "mean", "fc_norm": True, "final_norm": False},
    {"pool": "token+mean"},
    {"class_token": False, "pool": "mean", "qk_norm": True, "layer_scale": 0.3},
]


def small(**changes):
    torch.manual_seed(0)
    return noise(ViT(ViTConfig(**{**SMALL, **changes}))).eval()


def merged(model, r):
    return partial(merging(r), model)


def slowly_merged(x, size, keys, r, prefix):
    """One image: `x [t d]`, `size [t]`, `keys [t k]`; loops for every sentence of the paper's section 3."""
    places = range(prefix, len(x))
    first, second = [i for i in places if i % 2 == 0], [i for i in places if i % 2 == 1]

    def likeness(i, j):
        return float(torch.dot(keys[i], keys[j]) / (keys[i].norm() * keys[j].norm()))

    edges = []
    for i in first:
        j = max(second, key=lambda j: likeness(i, j))
        edges.append((likeness(i, j), i, j))
    edges.sort(reverse=True)
    sums, sizes = {i: x[i] * size[i] for i in range(len(x))}, {i: float(size[i]) for i in range(len(x))}
    gone = set()
    for _, i, j in edges[: min(r, len(places) // 2)]:
        sums[j], sizes[j] = sums[j] + x[i] * size[i], sizes[j] + float(size[i])
        gone.add(i)
    order = [*range(prefix), *(i for i in first if i not in gone), *second]
    return torch.stack([sums[i] / sizes[i] for i in order]), torch.tensor([sizes[i] for i in order])


@pytest.mark.parametrize("prefix", [0, 1, 2, 4])
def test_against_a_slow_reference(prefix):
    torch.manual_seed(prefix)
    x, keys = torch.randn(3, 18, 6), torch.randn(3, 18, 5)
    size = torch.randint(1, 5, (3, 18, 1)).float()
    for r in (1, 3, 50):
        ours, sizes = merge(x, size, keys, r, prefix)
        for i in range(3):
            expected, counts = slowly_merged(x[i], size[i, :, 0], keys[i], r, prefix)
            assert torch.allclose(ours[i], expected, atol=1e-5)
            assert torch.equal(sizes[i, :, 0], counts)


@pytest.mark.parametrize("changes", KINDS)
def test_merging_nothing_is_the_plain_model_to_the_last_bit(changes):
    model, x = small(**changes), torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        assert torch.equal(merged(model, 0)(x), model(x))
        assert torch.equal(merging(0, "features")(model, x), model.features(x))
        assert not torch.equal(merged(model, 5)(x), model(x))


@pytest.mark.parametrize("changes", [{"position": "none", **kind} for kind in KINDS])
def test_merging_tokens_that_are_the_same_changes_nothing(changes):
    model = small(**changes)
    x = torch.randn(2, 3, 4, 4).repeat(1, 1, 6, 6)  # without positions all 36 patches are one
    with torch.no_grad():
        for r in (1, 5, 12):
            assert torch.allclose(merged(model, r)(x), model(x), atol=2e-5)
            assert torch.allclose(merging(r, "features")(model, x), model.features(x), atol=2e-5)


def test_a_class_for_each_pixel_needs_every_token():
    model, x = small(dense="linear", dense_blocks=(0, 1)), torch.randn(2, 3, 24, 24)
    with pytest.raises(ValueError, match="leave --merge out for a dense head"):
        merging(2)(model, x)
    with torch.no_grad():
        assert torch.equal(merging(0)(model, x), model(x))
        assert merging(2, "features")(model, x).shape == model.features(x).shape  # which no dense head reads


@pytest.mark.parametrize("changes", KINDS[:3])
def test_a_last_block_for_the_tokens_that_are_read_gives_the_same(changes):
    model, x = small(**changes), torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        tokens, _ = merged_tokens(model, x, 5)
        assert torch.allclose(merged(model, 5)(x), model.forward_head(tokens), atol=1e-5)


def test_sizes_add_up_to_the_number_of_tokens_and_the_prefix_stays_alone():
    model = small(registers=3)
    with torch.no_grad():
        tokens, sizes = merged_tokens(model, torch.randn(2, 3, 24, 24), 5)
    assert tokens.shape == (2, 40 - 3 * 5, 32)
    assert sizes.sum(dim=1).flatten().tolist() == [40, 40]
    assert (sizes[:, :4] == 1).all()
    assert (sizes > 1).any()


def test_the_class_token_is_never_merged_even_where_all_keys_are_one():
    x = torch.randn(1, 9, 4)
    ours, sizes = merge(x, None, torch.ones(1, 9, 4), 100, 1)
    assert torch.allclose(ours[:, 0], x[:, 0])
    assert sizes[0, 0] == 1
    assert ours.shape[1] == 5
    assert sizes.sum() == 9


def test_a_key_of_size_two_counts_as_two_keys():
    model = small()
    attention, x = model.blocks[0].attn, torch.randn(1, 5, 32)
    size = torch.tensor([1.0, 1, 1, 1, 2]).view(1, 5, 1)
    with torch.no_grad():
        ours, keys = attention_and_keys(attention, x, size)
        twice = attention(torch.cat([x, x[:, 4:]], dim=1))[:, :5]
    assert torch.allclose(ours, twice, atol=1e-5)
    assert keys.shape == (1, 5, 8)


def test_more_than_half_is_never_merged_and_less_than_none_is_refused():
    model, x = small(), torch.randn(1, 3, 24, 24)
    with torch.no_grad():
        tokens, _ = merged_tokens(model, x, 1000)
    assert tokens.shape[1] == 1 + math.ceil(math.ceil(math.ceil(36 / 2) / 2) / 2)
    with pytest.raises(ValueError, match="0 or more, got -1"):
        merged(model, -1)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small model, saved, and two images."""
    from PIL import Image

    from vitreous.weights.save import save

    folder = tmp_path_factory.mktemp("merging")
    save(small(), folder / "model")
    for i in range(2):
        Image.effect_noise((30, 30 + i), 90).convert("RGB").save(folder / f"{i}.png")
    return folder


def test_classify_and_embed_merge_with_the_flag(files, capsys):
    import json

    import numpy as np

    from vitreous.cli.main import main
    from vitreous.predict.classify import classify
    from vitreous.predict.embed import embed
    from vitreous.weights.load import load

    model, images = load(files / "model"), [str(files / "0.png"), str(files / "1.png")]
    common = [*images, "--model", str(files / "model"), "--device", "cpu"]
    main(["classify", *common, "--json", "--merge", "6"])
    rows = json.loads(capsys.readouterr().out)
    with torch.no_grad():
        from vitreous.data.images import read_image

        x = torch.stack([model.card.preprocess(read_image(name)) for name in images])
        expected = merged(model, 6)(x)
        vectors = merging(6, "features")(model, x)
    for row, logits, plain in zip(rows, expected, classify(images, model, device="cpu"), strict=True):
        best = row["predictions"][0]
        assert best["logit"] == pytest.approx(logits[best["index"]].item(), abs=1e-5)
        assert plain.best.logit != pytest.approx(best["logit"], abs=1e-6)
    main(["embed", *common, "--merge", "6", "-o", str(files / "features.npz")])
    found = torch.from_numpy(np.load(files / "features.npz")["features"])
    assert torch.allclose(found, vectors, atol=1e-5)
    assert not torch.allclose(found, embed(images, model, device="cpu"), atol=1e-5)
