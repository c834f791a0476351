import pytest
import torch

from conftest import VIT_TI
from vitreous.data.sample_photos import samples
from vitreous.inside.artifacts import find_artifacts, has_registers, register_neurons, with_registers
from vitreous.inside.capture import capture
from vitreous.inside.hiding import HiddenPatches
from vitreous.inside.rollout import rollout_map
from vitreous.models.last_block import logits_only
from vitreous.models.token_layout import TokenLayout
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.speed.fused_forward import pack
from vitreous.views.inspection import Inspection
from vitreous.weights.convert import convert
from vitreous.weights.load import load
from vitreous.weights.save import save

LAYOUT = TokenLayout(grid=(3, 4), registers=2)


def test_long_tokens_are_found_from_their_first_block_on():
    outputs = torch.randn(5, LAYOUT.tokens, 16, generator=torch.Generator().manual_seed(0))
    outputs[3:, LAYOUT.index(2, 3)] *= 20
    outputs[4:, LAYOUT.index(0, 0)] *= 20
    found = find_artifacts(outputs, LAYOUT)
    assert (found.patches, found.block) == ((0, 11), 3)
    assert found.norm > 10 * found.usual


def test_class_and_register_tokens_are_no_artifacts():
    outputs = torch.ones(2, LAYOUT.tokens, 4)
    outputs[:, : LAYOUT.prefix] *= 100
    assert not find_artifacts(outputs, LAYOUT)


UNIT, PATCH = 9, 6
CONFIGS = {
    "vit": {},
    "registers": {"registers": 2, "prefix_positions": False},
    "mean": {"class_token": False, "pool": "mean"},
    "layer scale": {"layer_scale": 0.5, "distillation_token": True},
    "rope": {"position": "none", "rope": "axial"},
    "sine": {"position": "sine-1d"},
}


def artifact_model(attention=False, **options):
    """A model whose unit 9 of block 1 fires at bright patches alone and then adds a vector of length about 200."""
    torch.manual_seed(0)
    config = ViTConfig(image_size=16, patch_size=4, width=32, depth=4, heads=2, classes=5, mlp_width=48, **options)
    model = ViT(config).eval().requires_grad_(False)
    for each in model.parameters():
        each.normal_(std=0.2)
    for block in model.blocks:
        for norm in (block.norm1, block.norm2):
            norm.weight.fill_(1.0), norm.bias.zero_()
        if not attention:  # tokens do not meet: what becomes of each can be computed by hand
            block.attn.proj.weight.zero_(), block.attn.proj.bias.zero_()
    with capture(model, "norm2") as internals:
        model(bright())
    tokens = internals["blocks.1.norm2"][0]
    own, others = (
        tokens[model.layout.prefix + PATCH],
        tokens[[i for i in range(len(tokens)) if i != model.layout.prefix + PATCH]],
    )
    model.blocks[1].mlp.fc1.weight[UNIT] = 10 * own
    model.blocks[1].mlp.fc1.bias[UNIT] = -10 * float((others @ own).max().clamp_min(0) + own @ own) / 2
    scale = model.blocks[1].ls2.gamma.mean() if config.layer_scale else 1.0
    model.blocks[1].mlp.fc2.weight[:, UNIT] = torch.ones(32) / scale
    return model


def bright(images=1):
    x = torch.randn(images, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    x[:, :, 4:8, 8:12] = 1.0
    return x


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_the_neuron_that_makes_an_artifact_is_found_and_its_activation_moves_to_the_registers(options):
    model = artifact_model(**options)
    with capture(model, ["mlp_hidden", "output"]) as before:
        model(bright())
    assert find_artifacts(before.stack("output")[:, 0], model.layout).patches == (PATCH,)
    assert register_neurons(model, bright(2)) == [(1, UNIT)]
    new = with_registers(model, [(1, UNIT)], count=2)
    with capture(new, ["output"]) as after:
        new(bright())
    first, prefix = model.layout.prefix, new.layout.prefix
    assert not find_artifacts(after.stack("output")[:, 0], new.layout)
    fired = before["blocks.1.mlp_hidden"][0, first + PATCH, UNIT]
    added = model.blocks[1].ls2(model.blocks[1].mlp.fc2.weight[:, UNIT] * fired)
    expected = before["blocks.1.output"][0, first:].clone()
    ordinary = model.blocks[1].mlp.fc2.weight[:, UNIT, None] * before["blocks.1.mlp_hidden"][0, first:, UNIT]
    expected -= model.blocks[1].ls2(ordinary.T)
    torch.testing.assert_close(after["blocks.1.output"][0, prefix:], expected, atol=3e-3, rtol=1e-4)
    registers = after["blocks.1.output"][0, prefix - 2 : prefix]
    assert torch.equal(registers[0], registers[1])
    assert (registers[0] - added).norm() < 0.1 * added.norm()
    assert "norm.units" not in "".join(model.state_dict())  # the model itself stays as it was
    torch.testing.assert_close(before["blocks.3.output"][0, :first], after["blocks.3.output"][0, :first])


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_every_forward_pass_of_a_model_with_registers_is_the_same(options):
    model = artifact_model(attention=True, **options)
    new, x = with_registers(model, [(1, UNIT), (0, 3)], count=3), bright(2)
    logits = new(x)
    assert (logits - model(x)).abs().max() > 1e-3
    torch.testing.assert_close(logits_only(new, x), logits)
    assert pack(new, 2) is None  # which would leave the move out
    kept = torch.ones(2, 4, 4, dtype=torch.bool)
    for operator in ("blur", "removed"):
        torch.testing.assert_close(HiddenPatches(new, x[:1], (4, 4))(kept, operator), logits[:1].expand(2, -1))
    assert rollout_map(new, x).shape == (2, 4, 4)
    assert {id(each) for each in model.blocks.parameters()} == {id(each) for each in new.blocks.parameters()}


def test_where_no_token_stands_out_there_are_no_register_neurons():
    model = artifact_model()
    assert register_neurons(model, torch.randn(2, 3, 16, 16)) == []
    loaded = load("packaged:cifar10", test_time_registers=1)
    assert not has_registers(loaded)
    assert loaded.card.report.remarks()[-1].startswith("test-time registers: none added: no neuron")


def test_registers_that_cannot_be_are_errors(tmp_path):
    model = artifact_model()
    for wrong in ([], [(3, UNIT)], [(1, 48)]):  # none, in the last block, beyond the width
        with pytest.raises(ValueError, match="neuron"):
            with_registers(model, wrong)
    new = with_registers(model, [(1, UNIT)])
    with pytest.raises(ValueError, match="this model has test-time registers"):
        with_registers(new, [(1, UNIT)])
    with pytest.raises(ValueError, match="save the model without"):
        save(new, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(ValueError, match="convert the model without"):
        convert(new, tmp_path / "out.safetensors", to="timm")
    with pytest.raises(ValueError, match="a norm follows"):
        register_neurons(
            ViT(ViTConfig(image_size=16, patch_size=4, width=32, depth=2, heads=2, mlp_norm=True)), bright()
        )


@pytest.mark.slow
@pytest.mark.skipif(not VIT_TI.exists(), reason="the real ViT-Ti is not on this machine")
def test_vit_ti_keeps_them_in_the_four_corners():
    found = Inspection(load(VIT_TI), samples()["chelsea"]).artifacts
    assert (found.patches, found.block) == ((0, 13, 182, 195), 7)


@pytest.mark.slow
def test_registers_free_the_corners_of_the_packaged_vit_and_keep_its_answers():
    plain, model = load(), load(test_time_registers=4)
    assert "unit 417 of block 7, unit 189 of block 6" in model.card.report.registers
    x = torch.stack([plain.card.preprocess(image) for image in samples().values()])
    shares = []
    with torch.no_grad():
        for each in (plain, model):
            with capture(each, "attention", layers=[-1], queries=[0]) as internals:
                answers = each(x).softmax(dim=-1)
            on_patches = internals["blocks.11.attention"][:, :, 0, each.layout.prefix :].mean(dim=1)
            shares.append((on_patches[:, [0, 13, 182, 195]].sum(dim=1).mean(), answers))
    (before, first), (after, second) = shares
    assert before > 0.3 > 0.06 > after
    assert torch.equal(first.argmax(dim=-1), second.argmax(dim=-1))
    assert (first - second).abs().max() < 0.1
