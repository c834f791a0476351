"""The products of the ceiling."""

import pytest
import torch
from tiny_settings import CPU, TINY

from vitreous.benchmarking.roofline import MatrixProduct, ceiling_calls, multiply, products
from vitreous.speed.onednn import onednn_available


def test_the_ceilings_products_are_those_of_the_layers():
    work = sum(product.flops for product in products(TINY, 2, "cpu")[2:])
    assert work == 2 * (2 * 17) * 12 * 48 * 48  # a block without attention's own products


@pytest.mark.parametrize("bf16", [False, True])
def test_a_number_format_is_packed_where_the_cpu_has_its_instructions(monkeypatch, bf16):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: bf16, raising=False)
    assert onednn_available(torch.bfloat16) == (bf16 and onednn_available())
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", lambda weight, rows: weight, raising=False)
    found = ceiling_calls(TINY, 2, CPU, torch.bfloat16)
    assert any("packed" in name for name in found) == onednn_available(torch.bfloat16)


@pytest.mark.parametrize("packed", [False, True])
def test_a_product_has_the_shape_of_a_linear_layer(packed):
    if packed and not onednn_available():
        pytest.skip("this torch has no oneDNN")
    assert multiply(MatrixProduct(3, 16, 8), CPU, torch.float32, packed)().shape == (3, 8)
