"""Contenders are checked, timed, and turned into rows; what cannot run is left out with a reason."""

import pytest
import torch
from tiny_settings import setting

from vitreous.benchmarking import contenders as book
from vitreous.benchmarking.contenders import CONTENDERS, Contender, logits_only_model, select_contenders
from vitreous.benchmarking.run import check, run_benchmark
from vitreous.benchmarking.table import to_rows
from vitreous.benchmarking.timing import TimingSummary
from vitreous.models.vit_config import ViTConfig


@pytest.fixture
def quick(monkeypatch):
    """Small squares and short turns: the ceiling's size is no business of these tests."""
    monkeypatch.setattr("vitreous.benchmarking.roofline.SQUARES", {"cpu": (64,)})
    monkeypatch.setattr("vitreous.benchmarking.timing.TURN", 0.0)


def test_rows_hold_what_the_medians_say():
    pair = {"vitreous": CONTENDERS["vitreous"], "timm": CONTENDERS["timm"], "torchvision": CONTENDERS["torchvision"]}
    summaries = {
        "timm": TimingSummary(0.4, 0.1, 9),
        "vitreous": TimingSummary(0.2, 0.0, 9),
        "torchvision": TimingSummary(0.8, 0.0, 9),
    }
    nothing = dict.fromkeys(pair)
    rows = to_rows(summaries, pair, batch=8, flops=10, ceiling=1000.0, errors=dict.fromkeys(pair, 0.0), memory=nothing)
    assert [row.name for row in rows] == ["vitreous", "timm", "torchvision"]
    assert [row.images_per_second for row in rows] == pytest.approx([40, 20, 10])
    assert [row.milliseconds for row in rows] == pytest.approx([25, 50, 100])
    assert [row.ratio for row in rows] == pytest.approx([2.0, 1.0, 0.5])
    assert [row.share for row in rows] == pytest.approx([0.4, 0.2, 0.1])


def test_without_peers_there_is_no_ratio():
    alone = {"vitreous": CONTENDERS["vitreous"]}
    (row,) = to_rows(
        {"vitreous": TimingSummary(0.2, 0.0, 9)}, alone, 8, 10, 1000.0, {"vitreous": 0.0}, {"vitreous": None}
    )
    assert row.ratio is None


def test_a_contender_that_computes_something_else_is_an_error(quick):
    def wrong(material):
        run = logits_only_model(material)
        return lambda x: run(x) * 1.01

    with pytest.raises(ValueError, match="impostor computes something else: its logits differ from ours by 0.01 ×"):
        run_benchmark("tiny", setting(), {"impostor": Contender("timm", wrong)}, seconds=0.0)
    with pytest.raises(ValueError, match=r"expected logits \[2, 5\], got \[2, 4\]"):
        check("impostor", torch.zeros(2, 4), torch.ones(2, 5), "fp32")
    with pytest.raises(ValueError, match="impostor"):
        check("impostor", torch.full((2, 5), torch.nan), torch.ones(2, 5), "bf16")


def test_logits_for_some_of_the_images_are_an_error_too(quick):
    def lazy(material):
        run = logits_only_model(material)
        return lambda x: run(x[:9])

    with pytest.raises(ValueError, match="12 images gave 9 rows of logits"):
        run_benchmark("tiny", setting(batch=12), {"lazy": Contender("timm", lazy)}, seconds=0.0)


def test_a_contender_that_cannot_be_compiled_is_a_reason(quick):
    def broken(material):
        raise RuntimeError("no working C++ compiler")

    result = run_benchmark(
        "tiny", setting(), {**select_contenders((), ("eager",)), "x": Contender("timm", broken)}, seconds=0.0
    )
    assert result.left_out == {"x": "RuntimeError: no working C++ compiler"}
    with pytest.raises(RuntimeError, match="no working"):  # our own eager model has to run
        run_benchmark("tiny", setting(), {"ours": Contender("vitreous", broken)}, seconds=0.0)


def test_a_missing_library_is_a_reason(quick, monkeypatch):
    monkeypatch.setattr(book, "find_spec", lambda name: None)
    result = run_benchmark("tiny", setting(), select_contenders(("timm", "openvino"), ("eager",)), seconds=0.0)
    assert result.left_out["timm"] == "timm is not installed: pip install timm"
    assert {row.library for row in result.rows} == {"vitreous"}
    assert set(result.left_out) == {"timm", "openvino"}


def test_what_a_library_cannot_hold_is_a_reason(quick):
    config = ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=5, registers=2)
    result = run_benchmark(
        "registers", setting(config=config), select_contenders(("torchvision",), ("eager",)), seconds=0.0
    )
    assert "it does not support registers=2" in result.left_out["torchvision"]


def test_graphs_on_a_cpu_are_left_out(quick):
    result = run_benchmark("tiny", setting(), select_contenders((), ("eager", "graph")), seconds=0.0)
    assert result.left_out == {"vitreous, graph": "graphs need a CUDA device"}


def test_narrow_formats_run_and_are_near(quick):
    result = run_benchmark(
        "tiny", setting(precision="bf16"), select_contenders(("torchvision",), ("eager",)), seconds=0.0
    )
    assert len(result.rows) == 3
    assert all(1e-5 < row.error < 0.05 for row in result.rows)


def test_training_is_timed_with_three_times_the_work(quick):
    plain = run_benchmark("tiny", setting(), select_contenders((), ("eager",)), seconds=0.0)
    train = run_benchmark(
        "tiny", setting(train=True), select_contenders(("torchvision",), ("eager",), train=True), seconds=0.0
    )
    assert train.flops == 3 * plain.flops
    assert [row.rounds for row in train.rows] == [3, 3, 3]
