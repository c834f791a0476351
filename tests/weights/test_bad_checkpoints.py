"""Hostile and damaged checkpoints are refused in one line and never run; more in `benchmarks/fuzz_checkpoints.py`."""

import json
import time
import tracemalloc

import bad_checkpoints
import pytest
import torch
from safetensors.torch import load_file, save_file

from vitreous.cli.main import main
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.load import load
from vitreous.weights.safety import CheckpointError


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    torch.manual_seed(0)
    return bad_checkpoints.write_sound(tmp_path_factory.mktemp("sound"))


def loaded(path):
    """Whether it loads; what is not loaded is refused in one line, by the errors that the command line explains."""
    try:
        load(path)
    except (ValueError, OSError) as error:
        return False if "\n" not in str(error) else pytest.fail("more than one line")
    return True


def test_no_pickle_of_any_container_runs(tmp_path):
    canary = tmp_path / "canary"
    cases = list(bad_checkpoints.pickles(tmp_path, canary))
    assert len(cases) > 60
    for name, path in cases:
        assert not loaded(path), name
        assert not canary.exists(), name


def test_false_headers_and_indexes_that_lead_elsewhere_are_refused(tmp_path, sound):
    lies, indexes = list(bad_checkpoints.lies(tmp_path)), list(bad_checkpoints.indexes(tmp_path, sound["timm"]))
    assert lies
    assert indexes
    for name, path in lies + indexes:
        assert not loaded(path), name


def test_an_index_says_which_shard_it_names(tmp_path, sound):
    expected = {
        "parent": "plain file name",
        "absolute": "plain file name",
        "link": "outside its folder",
        "pipe": "lacks",
    }
    made = {name.removeprefix("index "): path for name, path in bad_checkpoints.indexes(tmp_path, sound["timm"])}
    for name, word in expected.items():
        with pytest.raises((ValueError, OSError), match=word):
            load(made[name])


@pytest.mark.slow
def test_damaged_safetensors_are_refused_or_are_other_numbers(tmp_path, sound):
    found = [loaded(path) for _, path in bad_checkpoints.damaged(tmp_path, sound["timm"], 150)]
    assert found.count(False) > 75  # cut short, or flipped in the header
    assert found.count(True) > 10  # flipped among the numbers, which have no checksum


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "empty", "scalar", "whole", "absent", "longer"])
def test_a_tensor_that_does_not_fit_is_named(tmp_path, sound, kind):
    key = "blocks.0.mlp.fc1.bias"
    for name, path in bad_checkpoints.wrong_tensors(tmp_path, sound["vitreous"]):
        held = load_file(path / "model.safetensors").get(key)
        if name == f"tensor {kind}" and (held is None or held.shape != (128,) or not held.is_floating_point()):
            with pytest.raises(CheckpointError, match=key):
                load(path)
            return
    pytest.fail(f"no case {kind}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", bad_checkpoints.SOUND)
def test_a_changed_config_file_is_used_or_refused(tmp_path, sound, kind):
    """A share of them; the benchmark tries all."""
    found = [loaded(path) for _, path in bad_checkpoints.config_lies(tmp_path, sound[kind], every=17)]
    assert True in found
    assert False in found


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("depth", 10**6, "its config says 1,000,000 blocks, its weights have 1"),
        ("depth", 2**62, "depth must be a whole number"),
        ("heads", 2**24, "cannot be split over 16777216 heads"),
        ("width", 2**40, "width must be a whole number"),
        ("width", 2**20, "should be"),
        ("patch_size", 0, "patch_size must be one positive whole number"),
        ("image_size", [2**20, 2**20], "patches of an image"),
        ("norm_eps", float("nan"), "norm_eps must be a number"),
        ("qkv_bias", "yes", "qkv_bias must be true or false"),
        ("pool", {}, "pool must be a word"),
        ("classes", -1, "must not be negative"),
    ],
)
def test_a_config_is_checked_before_anything_is_built(tmp_path, sound, field, value, word):
    message = json.loads((sound["vitreous"] / "config.json").read_text())
    message["vitreous"]["config"][field] = value
    path = bad_checkpoints._with_file(tmp_path, sound["vitreous"], "config.json", json.dumps(message), 0)
    tracemalloc.start()
    begun = time.process_time()
    with pytest.raises(ValueError, match=word):
        load(path)
    assert time.process_time() - begun < 2
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


def test_integers_instead_of_floats_are_accepted_in_a_config():
    assert ViTConfig(dropout=0, layer_scale=1).dropout == 0


@pytest.mark.parametrize("case", ["config", "pickle", "nan"])
def test_the_command_line_prints_one_line(tmp_path, sound, case, capsys):
    from vitreous.data.sample_photos import samples

    samples()["chelsea"].save(tmp_path / "cat.png")
    if case == "config":
        path = bad_checkpoints._with_file(tmp_path, sound["vitreous"], "config.json", '{"vitreous": 5}', 0)
    elif case == "pickle":
        path = next(bad_checkpoints.pickles(tmp_path, tmp_path / "canary"))[1]
    else:
        path = tmp_path / "nan"
        path.mkdir()
        tensors = load_file(sound["vitreous"] / "model.safetensors")
        tensors["norm.weight"][0] = float("nan")
        save_file(tensors, path / "model.safetensors")
        (path / "config.json").write_bytes((sound["vitreous"] / "config.json").read_bytes())
    with pytest.raises(SystemExit) as ended:
        main(["classify", str(tmp_path / "cat.png"), "--model", str(path), "--device", "cpu"])
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vitreous: ")]
    assert ended.value.code == 2
    assert len(lines) == 1
    assert {"config": '"vitreous": 5', "pickle": ".system", "nan": "NaN"}[case] in lines[0]
