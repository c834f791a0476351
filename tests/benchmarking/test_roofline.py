"""The products of the ceiling."""

import pytest
import torch

from vitreous.benchmarking.roofline import MatrixProduct, multiply, products
from vitreous.models.vit_config import ViTConfig
from vitreous.speed.fused_forward import onednn_available

TINY = ViTConfig(image_size=32, patch_size=8, width=48, depth=2, heads=4, classes=5)
CPU = torch.device("cpu")


def test_the_ceilings_products_are_those_of_the_layers():
    work = sum(product.flops for product in products(TINY, 2, "cpu")[2:])
    assert work == 2 * (2 * 17) * 12 * 48 * 48  # a block without attention's own products


@pytest.mark.parametrize("packed", [False, True])
def test_a_product_has_the_shape_of_a_linear_layer(packed):
    if packed and not onednn_available():
        pytest.skip("this torch has no oneDNN")
    assert multiply(MatrixProduct(3, 16, 8), CPU, torch.float32, packed)().shape == (3, 8)
