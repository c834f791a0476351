"""A larger image that is not square: every family's numbers are its own library's, where that library can do it."""

import pytest
import timm
import torch
from originals import BASES, TIMM, TRANSFORMERS
from timm.models.beit import checkpoint_filter_fn as resize_beit

from conftest import assert_same
from vitreous.weights.load import load

SIZE = (48, 40)  # trained at 32×32, in patches of 8


@pytest.fixture
def folder(tmp_path, request):
    BASES[request.param].write(tmp_path)
    return tmp_path


def built_anew(name, theirs):
    """timm's model for other images, where it cannot resize one in place: its own filter resizes BEiT's tables."""
    architecture, arguments = TIMM[name]
    larger = timm.create_model(architecture, num_classes=7, **arguments | {"img_size": SIZE}).eval()
    state = theirs.state_dict()
    larger.load_state_dict(resize_beit(state, larger) if name == "timm beit" else state)
    return larger


ELSEWHERE = ("timm test_vit", "timm cait")  # patches of 16 pixels; test_cait.py


@pytest.mark.parametrize("folder", [name for name in TIMM if name not in ELSEWHERE], indirect=True)
@torch.no_grad()
def test_timms_models(folder, request):
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    if hasattr(theirs, "set_input_size"):
        theirs.set_input_size(SIZE)
    else:
        theirs = built_anew(request.node.callspec.params["folder"], theirs)
    x = torch.randn(2, 3, *SIZE)
    assert_same(load(folder, image_size=SIZE)(x), theirs(x))


FIXED = ("transformers mae", "transformers aimv2", "transformers aimv2 headless")  # transformers refuses another size


@pytest.mark.parametrize("folder", [name for name in TRANSFORMERS if name not in FIXED], indirect=True)
@torch.no_grad()
def test_transformers_models(folder, request):
    original = BASES[request.node.callspec.params["folder"]].original(folder)
    x = torch.randn(2, 3, *SIZE)
    expected, ours = original.outputs(x), load(folder, image_size=SIZE)
    assert_same(ours.forward_features(x)[:, -expected.shape[1] :] if expected.dim() == 3 else ours(x), expected)
