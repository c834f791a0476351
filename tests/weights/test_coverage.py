"""A share of `benchmarks/coverage.py`: architectures of timm and transformers as folder, bare file and named file."""

import importlib.util
import sys
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
