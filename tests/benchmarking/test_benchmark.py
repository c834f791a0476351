import json
from dataclasses import replace

import pytest
import torch

from vitreous.benchmarking import contenders as book
from vitreous.benchmarking.benchmark import benchmark, check, figures
from vitreous.benchmarking.contenders import CONTENDERS, Contender, Material, Setting, chosen, random_model, shortcut
from vitreous.benchmarking.roofline import products
from vitreous.benchmarking.step import held, recorded, training_step
from vitreous.benchmarking.timing import Summary
from vitreous.cli.main import main
from vitreous.models.variants import VARIANTS
from vitreous.models.vit import ViTConfig

TINY = ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=5)
CPU = torch.device("cpu")
EAGER = [name for name, contender in CONTENDERS.items() if contender.mode == "eager"]


def setting(**changes):
    return Setting(**{"config": TINY, "batch": 2, "device": CPU} | changes)


@pytest.fixture
def quick(monkeypatch):
    """Small squares and short turns: the ceiling's size is no business of these tests."""
    monkeypatch.setattr("vitreous.benchmarking.roofline.SQUARES", {"cpu": (64,)})
    monkeypatch.setattr("vitreous.benchmarking.timing.TURN", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", EAGER)
def test_every_contender_gives_our_logits(name, tmp_path):
    pytest.importorskip(CONTENDERS[name].library)
    x = torch.randn(2, 3, 32, 32)
    material = Material(setting(), tmp_path)
    with torch.inference_mode():
        logits = CONTENDERS[name].build(material)(x)
        assert check(name, logits, material.reference(x), "fp32") < 1e-5


@pytest.mark.parametrize("name", [name for name in EAGER if CONTENDERS[name].trains])
def test_a_training_step_moves_a_librarys_weights(name, tmp_path):
    pytest.importorskip(CONTENDERS[name].library)
    material = Material(setting(train=True), tmp_path)
    run = CONTENDERS[name].build(material)
    module = material.modules[CONTENDERS[name].library]
    before = [parameter.clone() for parameter in module.parameters()]
    training_step(run, module, torch.randn(2, 3, 32, 32), material.setting)()
    assert module.training
    moved = [not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True)]
    assert sum(moved) > 0.8 * len(moved)  # a step of 1e-7 is lost in the rounding of a few
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recorded_step_moves_weights_as_the_step_does(tmp_path):
    here = replace(setting(train=True), device=torch.device("cuda"))
    x, ended = torch.randn(2, 3, 32, 32, device="cuda"), []
    for captured in (False, True):
        material = Material(here, tmp_path)
        run = CONTENDERS["vitreous"].build(material)
        module = material.modules["vitreous"]
        before = [parameter.detach().clone() for parameter in module.parameters()]
        step = training_step(run, module, x, here)
        call = recorded(step, here.device) if captured else step
        for _ in range(5 if captured else 5 + 3):  # recording takes three
            call()
        ended.append(torch.cat([(new - old).flatten() for old, new in zip(before, module.parameters(), strict=True)]))
    assert ended[0].abs().max() > 0
    torch.testing.assert_close(*ended, rtol=0.05, atol=2e-7)


def test_no_part_of_the_random_model_is_silent():
    model, x = random_model(TINY), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        truth = model(x)
        for parameter in model.parameters():
            kept = parameter.clone()
            parameter.mul_(1.1).add_(0.01)
            change = (model(x) - truth).abs().max() / truth.abs().max()
            parameter.copy_(kept)
            silent = parameter.shape == (3 * TINY.width,)  # a third of it, the keys' bias, cancels in the softmax
            assert change > (1e-5 if silent else 1e-4)


def test_rows_hold_what_the_medians_say():
    pair = {"vitreous": CONTENDERS["vitreous"], "timm": CONTENDERS["timm"], "torchvision": CONTENDERS["torchvision"]}
    summaries = {"timm": Summary(0.4, 0.1, 9), "vitreous": Summary(0.2, 0.0, 9), "torchvision": Summary(0.8, 0.0, 9)}
    nothing = dict.fromkeys(pair)
    rows = figures(summaries, pair, batch=8, flops=10, ceiling=1000.0, errors=dict.fromkeys(pair, 0.0), memory=nothing)
    assert [row.name for row in rows] == ["vitreous", "timm", "torchvision"]
    assert [row.images_per_second for row in rows] == pytest.approx([40, 20, 10])
    assert [row.milliseconds for row in rows] == pytest.approx([25, 50, 100])
    assert [row.ratio for row in rows] == pytest.approx([2.0, 1.0, 0.5])
    assert [row.share for row in rows] == pytest.approx([0.4, 0.2, 0.1])


def test_without_peers_there_is_no_ratio():
    alone = {"vitreous": CONTENDERS["vitreous"]}
    (row,) = figures({"vitreous": Summary(0.2, 0.0, 9)}, alone, 8, 10, 1000.0, {"vitreous": 0.0}, {"vitreous": None})
    assert row.ratio is None


def test_a_contender_that_computes_something_else_is_an_error(quick):
    def wrong(material):
        run = shortcut(material)
        return lambda x: run(x) * 1.01

    with pytest.raises(ValueError, match="impostor computes something else: its logits lie 0.01 ×"):
        benchmark("tiny", setting(), {"impostor": Contender("timm", wrong)}, seconds=0.0)
    with pytest.raises(ValueError, match=r"expected logits \[2, 5\], got \[2, 4\]"):
        check("impostor", torch.zeros(2, 4), torch.ones(2, 5), "fp32")
    with pytest.raises(ValueError, match="impostor"):
        check("impostor", torch.full((2, 5), torch.nan), torch.ones(2, 5), "bf16")


def test_logits_for_some_of_the_images_are_an_error_too(quick):
    def lazy(material):
        run = shortcut(material)
        return lambda x: run(x[:9])

    with pytest.raises(ValueError, match="12 images gave 9 rows of logits"):
        benchmark("tiny", setting(batch=12), {"lazy": Contender("timm", lazy)}, seconds=0.0)


def test_a_contender_that_cannot_be_compiled_is_a_reason(quick):
    def broken(material):
        raise RuntimeError("no working C++ compiler")

    result = benchmark("tiny", setting(), {**chosen((), ("eager",)), "x": Contender("timm", broken)}, seconds=0.0)
    assert result.left_out == {"x": "RuntimeError: no working C++ compiler"}
    with pytest.raises(RuntimeError, match="no working"):  # our own eager model has to run
        benchmark("tiny", setting(), {"ours": Contender("vitreous", broken)}, seconds=0.0)


def test_a_missing_library_is_a_reason(quick, monkeypatch):
    monkeypatch.setattr(book, "find_spec", lambda name: None)
    result = benchmark("tiny", setting(), chosen(("timm", "openvino"), ("eager",)), seconds=0.0)
    assert result.left_out["timm"] == "timm is not installed: pip install timm"
    assert {row.library for row in result.rows} == {"vitreous"}
    assert set(result.left_out) == {"timm", "openvino"}


def test_what_a_library_cannot_hold_is_a_reason(quick):
    config = ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=5, registers=2)
    result = benchmark("registers", setting(config=config), chosen(("torchvision",), ("eager",)), seconds=0.0)
    assert "it does not support registers=2" in result.left_out["torchvision"]


def test_graphs_on_a_cpu_are_left_out(quick):
    result = benchmark("tiny", setting(), chosen((), ("eager", "graph")), seconds=0.0)
    assert result.left_out == {"vitreous, graph": "graphs need a CUDA device"}


def test_narrow_formats_run_and_are_near(quick):
    result = benchmark("tiny", setting(precision="bf16"), chosen(("torchvision",), ("eager",)), seconds=0.0)
    assert len(result.rows) == 3
    assert all(1e-5 < row.error < 0.05 for row in result.rows)


def test_training_is_timed_with_three_times_the_work(quick):
    plain = benchmark("tiny", setting(), chosen((), ("eager",)), seconds=0.0)
    train = benchmark("tiny", setting(train=True), chosen(("torchvision",), ("eager",), train=True), seconds=0.0)
    assert train.flops == 3 * plain.flops
    assert [row.rounds for row in train.rows] == [3, 3, 3]


def test_runtimes_do_not_train():
    assert not {"openvino", "onnxruntime"} & set(chosen(("openvino", "onnxruntime"), ("eager",), train=True))


def test_an_unknown_library_or_mode_is_named():
    with pytest.raises(ValueError, match="no library here is called 'keras': there are vitreous, timm"):
        chosen(("keras",), ("eager",))
    with pytest.raises(ValueError, match="no mode here is called 'lazy'"):
        chosen((), ("lazy",))


def test_a_model_that_trains_holds_its_weights_three_times():
    model = torch.nn.Linear(10, 10, bias=False)
    assert (held(model, False), held(model, True)) == (400, 1200)


def test_the_ceilings_products_are_those_of_the_layers():
    work = sum(product.flops for product in products(TINY, 2, "cpu")[2:])
    assert work == 2 * (2 * 17) * 12 * 48 * 48  # a block without attention's own products


@pytest.mark.slow
def test_the_verb_prints_a_table_and_writes_figures(quick, monkeypatch, tmp_path, capsys):
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


def test_the_verb_warns_on_a_busy_machine(quick, monkeypatch, capsys):
    monkeypatch.setitem(VARIANTS, "vit_test", TINY)
    monkeypatch.setattr("vitreous.benchmarking.timing.load_average", lambda: 64.0)
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
