"""What a model's name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitreous.weights.fetch import fetch
from vitreous.weights.names import DEFAULT_TAGS, TORCHVISION_MODELS, ParsedName, parse

pytestmark = pytest.mark.usefixtures("own_folders")
AUGREG = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.01-res_224.npz"


@pytest.mark.parametrize(
    ("name", "kind", "target", "version"),
    [
        ("google/vit-base-patch16-224", "hub", "google/vit-base-patch16-224", None),
        ("google/vit-base-patch16-224@v1", "hub", "google/vit-base-patch16-224", "v1"),
        ("hf-hub:timm/vit_x.tag", "hub", "timm/vit_x.tag", None),
        ("hf_hub:org/name@refs/pr/1", "hub", "org/name", "refs/pr/1"),
        (
            "vit_base_patch16_224.augreg2_in21k_ft_in1k",
            "hub",
            "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k",
            None,
        ),
        ("flexivit_base.1200ep_in1k@main", "hub", "timm/flexivit_base.1200ep_in1k", "main"),
        ("resnet50.a1_in1k", "hub", "timm/resnet50.a1_in1k", None),
        ("vit_base_patch16_224", "hub", "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k", None),
        ("timm/deit_tiny_patch16_224", "hub", "timm/deit_tiny_patch16_224.fb_in1k", None),
        ("torchvision:vit_b_16", "torchvision", "vit_b_16", None),
        ("torchvision:vit_b_16.IMAGENET1K_V1", "torchvision", "vit_b_16", "IMAGENET1K_V1"),
        ("torchvision:vit_b_16/IMAGENET1K_V1", "torchvision", "vit_b_16", "IMAGENET1K_V1"),
        ("resnet152", "torchvision", "resnet152", None),
        ("resnet50.IMAGENET1K_V2", "torchvision", "resnet50", "IMAGENET1K_V2"),
        ("ViT-B_16.npz", "google", "imagenet21k/ViT-B_16.npz", None),
        ("R50+ViT-B_16.npz", "google", "imagenet21k/R50+ViT-B_16.npz", None),
        ("ViT-B_16-224.npz", "google", "imagenet21k+imagenet2012/ViT-B_16-224.npz", None),
        ("imagenet21k+imagenet2012/ViT-L_16.npz", "google", "imagenet21k+imagenet2012/ViT-L_16.npz", None),
        (AUGREG, "google", f"augreg/{AUGREG}", None),
        (f"augreg/{AUGREG}", "google", f"augreg/{AUGREG}", None),
        ("gs://vit_models/sam/ViT-B_16.npz", "google", "sam/ViT-B_16.npz", None),
        (
            "https://storage.googleapis.com/vit_models/imagenet21k%2Bimagenet2012/ViT-B_16.npz",
            "google",
            "imagenet21k+imagenet2012/ViT-B_16.npz",
            None,
        ),
        ("https://example.org/a/vit.pth?download=1", "url", "https://example.org/a/vit.pth?download=1", None),
        ("http://localhost:80/vit.pth", "url", "http://localhost:80/vit.pth", None),
        ("packaged", "packaged", "vit_tiny", None),
        ("packaged:vit_tiny", "packaged", "vit_tiny", None),
        ("packaged:cifar10", "packaged", "cifar10", None),
        ("cifar10", "packaged", "cifar10", None),
    ],
)
def test_a_name_is_parsed_to_its_kind_and_target(name: str, kind: str, target: str, version: str | None) -> None:
    assert parse(name) == ParsedName(kind, target, version)


def test_what_exists_on_the_disk_wins_over_every_name_but_the_packaged_models() -> None:
    for name in ("google/vit", "resnet50", "vit_base_patch16_224", "ViT-B_16.npz"):
        assert parse(name).kind not in ("file", "folder")
        Path(name).mkdir(parents=True)
        assert parse(name) == ParsedName("folder", name)
    Path("cifar10").mkdir()
    assert parse("cifar10").kind == "packaged"
    assert parse("./cifar10") == ParsedName("folder", "./cifar10")
    assert parse(Path("cifar10")) == ParsedName("folder", "cifar10")


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "vit.pth").touch()
    assert fetch("~/vit.pth").weights == (tmp_path / "vit.pth",)
    assert fetch("~/vit.pth").name == "~/vit.pth"


@pytest.mark.parametrize(
    "name",
    ["./none", "../none/model.safetensors", "/none/at/all", "~/none", "none.pth", "org/none.safetensors"],
)
def test_a_path_that_does_not_exist_is_not_looked_up_on_the_hub(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file or folder .*none.*: check the path"):
        parse(name)


def test_a_path_object_is_always_a_path() -> None:
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        parse(Path("google/vit-base-patch16-224"))
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        parse(Path("ViT-B_16.npz"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the model has no name"),
        (
            "vit_base_patch16_225",
            r"did you mean vit_base_patch16_224 .*add its tag \(vit_base_patch16_225\.<tag>\)",
        ),
        ("vit_huge_patch14_224", r"add its tag \(vit_huge_patch14_224\.<tag>\)"),
        ("reznet50", "did you mean resnet50"),
        ("Some Model", "no model is known by the name 'Some Model'"),
        ("org/name@", "expected a revision after it"),
        ("a/b/c", "write org/name"),
        ("gs://another/ViT-B_16.npz", "expected gs://vit_models/"),
        ("gs://vit_models/augreg/../../secret.npz", r"expected gs://vit_models/<folder>/<name>\.npz"),
        ("http://example.org/vit.pth", "use https://"),
        ("https://example.org/page", "does not end like a weights file"),
        ("https://example.org/model.safetensors.index.json", "does not end like a weights file"),
    ],
)
def test_an_unknown_name_says_what_to_try(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(name)


def test_google_names_cannot_climb_out_of_the_cache() -> None:
    for name in ("B_16-i/../../../x.npz", "augreg/../../x.npz", "augreg/..\\x.npz"):
        with pytest.raises(FileNotFoundError):
            parse(name)


def test_default_tags_are_tags_that_timm_has() -> None:
    timm = pytest.importorskip("timm")
    known = set(timm.list_pretrained())
    assert [name for name, tag in DEFAULT_TAGS.items() if f"{name}.{tag}" not in known] == []


def test_torchvision_knows_the_bare_names() -> None:
    from torchvision.models import list_models

    assert set(TORCHVISION_MODELS) <= set(list_models())
