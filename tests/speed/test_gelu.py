"""GELU by a formula, against torch's."""

import torch

from vitreous.speed.gelu import gelu, normal_cdf


def test_the_formula_is_exact_to_its_stated_error():
    x = torch.linspace(-12, 12, 10_001, dtype=torch.float64)
    assert (normal_cdf(x) - torch.special.ndtr(x)).abs().max() < 1e-7
    assert (gelu(x) - torch.nn.functional.gelu(x)).abs().max() < 1e-6


def test_the_format_is_kept_and_bf16_is_rounded_once():
    x = torch.linspace(-6, 6, 1001).bfloat16()
    assert gelu(x).dtype == torch.bfloat16
    expected = torch.nn.functional.gelu(x.float()).bfloat16()
    assert ((gelu(x) - expected).abs() <= 2**-7 * expected.abs() + 1e-6).all()
