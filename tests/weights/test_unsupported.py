import re
from pathlib import Path

import pytest

from vitreous.weights.safety import CheckpointError
from vitreous.weights.timm_architectures import timm_arguments
from vitreous.weights.unsupported import SUPPORTED, UNSUPPORTED, check_family, unsupported_family

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "checkpoint.md"


def test_an_unsupported_family_is_answered_with_every_supported_one():
    with pytest.raises(CheckpointError, match="the family XCiT is not supported .*: supported are ViT, ") as error:
        check_family([], {"architecture": "xcit_nano_12_p16_224"})
    assert str(error.value).endswith(", ".join(SUPPORTED))


@pytest.mark.skipif(not GUIDE.is_file(), reason="the guides are not part of a source distribution")
def test_the_guide_has_every_supported_family():
    table = GUIDE.read_text().partition("## Which formats")[2].partition("\n## ")[0]
    assert [family for family in SUPPORTED if family not in table] == []


def test_the_families_of_the_table_of_architectures_are_on_the_list():
    families = [re.sub(r"\W", "", family).lower() for family in SUPPORTED]
    first = {name.split("_")[0] for name, held in timm_arguments().items() if "unsupported" not in held} - {"test"}
    assert [word for word in sorted(first) if not any(word.startswith(family) for family in families)] == []


def test_no_family_is_on_both_lists():
    assert not set(SUPPORTED) & (set(UNSUPPORTED) - {"DINOv3", "EVA", "Perception Encoder"})  # their makers' own files
    assert unsupported_family("swin_tiny_patch4_window7_224") == "Swin Transformer"
