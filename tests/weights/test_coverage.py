"""A share of `benchmarks/coverage.py`: architectures of timm and transformers as folder, bare file and named file."""

import importlib.util
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("timm")
pytest.importorskip("transformers")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "coverage.py"
if not SCRIPT.is_file():
    pytest.skip("the benchmarks are not part of a source distribution", allow_module_level=True)
spec = importlib.util.spec_from_file_location("checkpoint_coverage", SCRIPT)  # `coverage` is pytest-cov's
coverage = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = coverage
spec.loader.exec_module(coverage)

EXACT = {  # tag → forms in which it loads exactly; in the others it is refused
    "vit_tiny_patch16_224.augreg_in21k": ("folder", "bare", "named"),
    "deit_tiny_distilled_patch16_224.fb_in1k": ("folder", "bare", "named"),
    "vit_base_patch16_siglip_gap_224.webli": ("folder", "named"),
    "vit_base_patch32_clip_quickgelu_224.openai": ("folder", "named"),
    "vit_base_patch16_rpn_224.sw_in1k": ("folder", "named"),
    "eva02_tiny_patch14_224.mim_in22k": ("folder", "bare", "named"),
    "vit_small_patch16_dinov3.lvd1689m": ("folder", "named"),
    "cait_xxs24_224.fb_dist_in1k": ("folder", "bare", "named"),
    "naflexvit_base_patch16_parfac_gap.e300_s576_in1k": ("folder", "bare", "named"),
    "naflexvit_base_patch16_siglip.v2_webli": ("folder", "named"),
    "xcit_nano_12_p16_224.fb_in1k": (),
}


@pytest.mark.slow
@pytest.mark.parametrize("tag", EXACT)
def test_an_architecture_of_timm_is_exact_or_refused(tag):
    outcomes = coverage.cover_architecture("", [tag], coverage.FORMS)
    assert {each.form: each.result for each in outcomes} == {
        form: "exact" if form in EXACT[tag] else "refused" for form in coverage.FORMS
    }, [each.reason for each in outcomes]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["vit:ViTForImageClassification", "dinov2:Dinov2Model", "eomt:EomtForUniversalSegmentation"]
)
def test_a_class_of_transformers_is_exact_or_refused(name):
    outcomes = {each.form: each for each in coverage.cover_transformers(name, coverage.FORMS)}
    assert outcomes["folder"].result == ("refused" if "Eomt" in name else "exact"), outcomes["folder"].reason
    assert outcomes["bare"].result in ("exact", "refused"), outcomes["bare"].reason


@pytest.mark.slow
def test_a_tensor_that_is_loaded_otherwise_is_wrong_in_every_form(monkeypatch):
    """The comparison itself: a loader that changed one tensor a little would be caught."""
    build, name = coverage.build_two_blocks, "blocks.1.norm2.bias"

    def halve(build_vit, config, tensors, *rest, **options):
        return build(build_vit, config, tensors | {name: tensors[name] / 2}, *rest, **options)

    monkeypatch.setattr(coverage, "build_two_blocks", halve)
    outcomes = coverage.cover_architecture("", ["vit_tiny_patch16_224.augreg_in21k"], coverage.FORMS)
    assert [each.result for each in outcomes] == ["wrong"] * 3


@pytest.mark.slow
def test_blocks_after_the_second_are_checked_though_they_are_not_run(monkeypatch):
    write = coverage.write_with_holes

    def without_the_last_bias(model, whole, path):
        whole.blocks[-1].norm1.bias = None
        write(model, whole, path)

    monkeypatch.setattr(coverage, "write_with_holes", without_the_last_bias)
    outcomes = coverage.cover_architecture("", ["vit_tiny_patch16_224.augreg_in21k"], coverage.FORMS)
    assert [each.result for each in outcomes] == ["refused"] * 3
    assert all("blocks.11.norm1.bias" in each.reason for each in outcomes)


def test_a_resumed_run_keeps_what_the_file_holds(tmp_path, monkeypatch, capsys):
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps([asdict(coverage.Outcome("timm", "deit", "a.b", "bare", "exact"))]))
    monkeypatch.setattr(sys, "argv", ["coverage.py", "--json", str(path), "--resume"])
    new = coverage.Outcome("timm", "deit", "c.d", "bare", "wrong", "outputs differ")
    monkeypatch.setattr(coverage, "cover", lambda *given: [[new]] if given[-1] == {"a.b"} else [])
    with pytest.raises(SystemExit) as ended:
        coverage.main()
    assert ended.value.code == 1
    assert [each["name"] for each in json.loads(path.read_text())] == ["a.b", "c.d"]
    assert capsys.readouterr().out.splitlines()[1].split() == ["timm", "(all)", "bare", "1", "1", "0", "0"]


def test_the_table_counts_folders_and_replaces_what_stands_between_the_markers(tmp_path):
    def case(library, family, name, result, form="folder"):
        return coverage.Outcome(library, family, name, form, result)

    outcomes = [
        *(case("timm", "eva", f"eva.{n}", "exact") for n in range(3)),
        case("timm", "xcit", "xcit.a", "refused"),
        case("timm", "eva", "eva.0", "wrong", form="bare"),
        *(case("transformers", "vit", name, result) for name, result in (("a", "exact"), ("b", "refused"))),
        case("transformers", "swin", "c", "refused"),
    ]
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{coverage.MARKERS[0]}\nold\n{coverage.MARKERS[1]}\n\nafter\n")
    for _ in range(2):  # the same again
        coverage.write_table(page, coverage.coverage_table(outcomes, coverage.datetime.date(2026, 11, 17)))
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1], "old" in lines) == ("before", "after", False)
    assert any(line.startswith("| timm: DINOv3, EVA") and line.endswith("| 3 | 3 |") for line in lines)
    assert "| all of timm's pretrained ViTs: **75%** | 3 | 4 |" in lines
    assert "| transformers: the 1 model types that are read, all their classes | 1 | 2 |" in lines
    assert sum("1 are wrong, 0 crash" in line for line in lines) == 1
    with pytest.raises(ValueError, match="has no <!-- coverage"):
        coverage.write_table(Path(__file__).parent / "conftest.py", "")


@pytest.mark.slow
def test_a_whole_model_is_compared_in_all_its_blocks(monkeypatch, capsys):
    assert coverage.cover_full("test_vit.r160_in1k").result == "exact"
    assert capsys.readouterr().out.startswith("| test_vit.r160_in1k | 6 | 0 | exact |")
    from vitreous.weights import build as build_module

    build = build_module.build_vit

    def halve(config, tensors, *rest, **options):
        last = f"blocks.{config.depth - 1}.norm1.weight"
        return build(config, tensors | {last: tensors[last] / 2}, *rest, **options)

    monkeypatch.setattr("vitreous.weights.load.build_vit", halve)
    assert coverage.cover_full("test_vit.r160_in1k").result == "wrong"
