"""`vitreous.benchmark` and its command: tables, files and warnings."""

import json

import pytest

import vitreous
from vitreous.cli.main import main
from vitreous.models.variants import VARIANTS
from vitreous.models.vit_config import ViTConfig

TINY = ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=5)


@pytest.fixture
def quick(monkeypatch):
    """Small squares and short turns: the ceiling's size is no business of these tests."""
    monkeypatch.setattr("vitreous.benchmarking.roofline.SQUARES", {"cpu": (64,)})
    monkeypatch.setattr("vitreous.benchmarking.timing.TURN", 0.0)


@pytest.mark.slow
def test_the_result_prints_itself_and_is_saved(quick, monkeypatch, tmp_path):
    monkeypatch.setitem(VARIANTS, "vit_test", TINY)
    lines, results = [], []
    found = vitreous.benchmark(
        "vit_test", batch_size=1, against=(), seconds=0.01, device="cpu", note=lines.append, on_result=results.append
    )
    title, header, *rest = repr(found).splitlines()
    assert title.startswith("vit_test, inference, batch 1, fp32")
    assert header.split() == ["images/s", "ms", "spread", "×", "peer", "of", "limit", "error"]
    assert len({len(line) for line in (header, *rest[:2])}) == 1  # columns are aligned
    assert "<caption>vit_test, inference" in found._repr_html_()
    assert results == found.results
    assert "vit_test: timing" in lines
    assert [path.name for path in found.save(tmp_path)] == ["benchmark.json", "benchmark.png", "benchmark.svg"]


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_figures(quick, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(VARIANTS, "vit_test", TINY)
    words = ["benchmark", "--models", "vit_test", "--batch-size", "2", "--seconds", "0.01", "--device", "cpu"]
    monkeypatch.setenv("COLUMNS", "80")
    main([*words, "--against", "torchvision", "-o", str(tmp_path)])
    out = capsys.readouterr().out
    assert "vit_test, inference, batch 2, fp32" in out
    assert "vitreous, whole network" in out
    assert "GFLOP/s" in out
    assert "…" not in out  # nothing is cut at the usual width of a terminal
    found = json.loads((tmp_path / "benchmark.json").read_text())
    assert {"device", "processor", "versions", "date", "results"} <= set(found)
    assert len(found["results"][0]["rows"]) == 3
    assert (tmp_path / "benchmark.png").read_bytes()[1:4] == b"PNG"
    assert b"<svg" in (tmp_path / "benchmark.svg").read_bytes()
    main([*words, "--against", "", "--json"])
    assert json.loads(capsys.readouterr().out)["results"][0]["model"] == "vit_test"


def test_the_command_warns_on_a_busy_machine(quick, monkeypatch, capsys):
    monkeypatch.setitem(VARIANTS, "vit_test", TINY)
    monkeypatch.setattr("vitreous.api.benchmark.load_average", lambda: 64.0)
    main(
        [
            "benchmark",
            "--models",
            "vit_test",
            "--batch-size",
            "1",
            "--seconds",
            "0.01",
            "--against",
            "",
            "--device",
            "cpu",
            "--json",
        ]
    )
    assert "busy: the load average was 64.0" in " ".join(capsys.readouterr().err.split())


def test_a_model_without_a_head_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["benchmark", "--models", "vit_small_patch14_dinov2"])
    assert stop.value.code == 2
    assert "has no head" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", [0.0, float("nan"), float("inf")])
def test_rounds_that_would_never_begin_or_end_are_refused(seconds):
    with pytest.raises(ValueError, match="seconds and batch size must be numbers above 0, got"):
        vitreous.benchmark("vit_femto_patch4_32", seconds=seconds)


def test_a_benchmark_of_nothing_is_an_error(monkeypatch):
    monkeypatch.setitem(VARIANTS, "vit_test", TINY)
    with pytest.raises(ValueError, match=r"there is nothing to time \(vitreous, graph: graphs need a CUDA device\)"):
        vitreous.benchmark("vit_test", batch_size=1, against=(), modes=("graph",), device="cpu")
