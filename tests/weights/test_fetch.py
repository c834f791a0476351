"""Names become files: every form of name, against servers on loopback, broken ones included."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from loopback_hub import Answer, LoopbackFiles, LoopbackHub, leftovers

from vitreous.weights import fetch as fetching
from vitreous.weights.fetch import fetch

pytestmark = pytest.mark.usefixtures("own_folders")

WEIGHTS = bytes(range(256)) * 40
AUGREG = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.01-res_224.npz"


def write(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(WEIGHTS)
    return folder


def index_of(*shards: object) -> bytes:
    return json.dumps({"weight_map": {f"blocks.{i}.weight": shard for i, shard in enumerate(shards)}}).encode()


# What a name means


def test_importing_fetch_is_cheap() -> None:
    code = "import sys, vitreous.weights.fetch; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["torch", "torchvision", "huggingface_hub", "rich", "numpy"]
    answer = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == "[]", answer.stderr


# Files and folders


def test_all_files_of_a_hub_folder_are_found(tmp_path: Path) -> None:
    names = (
        "model.safetensors",
        "config.json",
        "preprocessor_config.json",
        "pytorch_model.bin",
        "optimizer.pt",
    )
    folder = write(tmp_path / "vit", *names)
    source = fetch(folder)
    assert source.origin == "folder"
    assert source.name == str(folder)
    assert source.weights == (folder / "model.safetensors",)
    assert source.config == folder / "config.json"
    assert source.preprocessor == folder / "preprocessor_config.json"
    assert source.index is None
    assert source.revision is None


def test_weights_of_a_folder_are_preferred_in_order(tmp_path: Path) -> None:
    (tmp_path / "vit" / "model.safetensors.index.json").mkdir(parents=True)  # not a file, so no candidate
    order = ["model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "other.pth"]
    folder = write(tmp_path / "vit", *order)
    for name in order:
        assert [path.name for path in fetch(folder).weights] == [name]
        (folder / name).unlink()


@pytest.mark.parametrize("name", ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"])
def test_openclips_weights_come_with_its_own_config(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "clip", name, "config.json", "open_clip_config.json")
    assert fetch(folder).config == folder / "open_clip_config.json"


@pytest.mark.parametrize("adapter", ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"])
def test_the_base_of_a_peft_adapter_is_not_loaded_without_it(tmp_path: Path, adapter: str) -> None:
    folder = write(tmp_path / "lora", "model.safetensors", "config.json", adapter)
    with pytest.raises(ValueError, match=r"not merged into a model: .*for the base without it, give the path of mo"):
        fetch(folder)
    assert fetch(folder / "model.safetensors").weights == (folder / "model.safetensors",)


@pytest.mark.parametrize("name", ["last.ckpt", "model_best.pth.tar"])
def test_the_one_file_of_a_training_script_is_found_in_a_folder(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "run", name, "notes.txt")
    assert fetch(folder).weights == (folder / name,)
    write(folder, "mine.pth")  # weights alone come first, as before
    assert fetch(folder).weights == (folder / "mine.pth",)
    with pytest.raises(ValueError, match=r"several weights files \(first.ckpt, last.ckpt\)"):
        fetch(write(tmp_path / "two", "first.ckpt", "last.ckpt"))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("modules.json", "sentence-transformers: load the folder of its image model, such as 0_CLIPModel"),
        ("__0_0.distcp", "a distributed checkpoint of torch"),
        ("model.onnx", "an ONNX graph"),
        ("model.pt2", "a program of torch.export"),
    ],
)
def test_a_folder_of_something_else_is_named_as_that(tmp_path: Path, name: str, what: str) -> None:
    folder = write(tmp_path / "other", name, "README.md")
    with pytest.raises(FileNotFoundError, match=f"other holds {name}, .*{what}"):
        fetch(folder)
    with pytest.raises(ValueError, match=f"other holds {name}, .*{what}"):
        fetch(folder / name)


def test_a_peft_adapter_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "lora", "adapter_config.json", "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"holds a PEFT adapter that is not merged .*: merge it into its base .*$"):
        fetch(folder)


@pytest.mark.parametrize("name", ["vit.safetensors", "vit.pth", "vit.pt", "vit.npz"])
def test_a_single_weights_file_of_any_name_will_do(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "vit", name, "config.json", "notes.txt")
    source = fetch(folder)
    assert source.weights == (folder / name,)
    assert source.config == folder / "config.json"


def test_a_folder_with_two_candidates_names_both(tmp_path: Path) -> None:
    folder = write(tmp_path / "vit", "best.pth", "last.pth")
    with pytest.raises(ValueError, match=r"several weights files \(best\.pth, last\.pth\): give the path of one"):
        fetch(folder)


def test_a_folder_without_weights_says_what_it_found(tmp_path: Path) -> None:
    folder = write(tmp_path / "vit", "README.md", "config.json")
    with pytest.raises(FileNotFoundError, match=r"no weights: expected model\.safetensors .*found README\.md, config"):
        fetch(folder)
    with pytest.raises(FileNotFoundError, match="found nothing"):
        fetch(write(tmp_path / "empty"))


def test_a_file_takes_the_configuration_that_is_surely_its_own(tmp_path: Path) -> None:
    folder = write(tmp_path / "vit", "model.safetensors", "a.pth", "b.pth", "b.json", "config.json")
    assert fetch(folder / "model.safetensors").config == folder / "config.json"
    assert fetch(folder / "a.pth").config is None
    assert fetch(folder / "b.pth").config == folder / "b.json"
    alone = write(tmp_path / "alone", "a.pth", "config.json", "preprocessor_config.json")
    assert fetch(alone / "a.pth").config == alone / "config.json"
    assert fetch(alone / "a.pth").preprocessor == alone / "preprocessor_config.json"
    assert fetch(alone / "a.pth").origin == "file"


def test_other_files_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "vit", "photo.jpg", "model-00001-of-00002.safetensors")
    with pytest.raises(ValueError, match=r"photo\.jpg is not a weights file: expected one ending in \.safetensors"):
        fetch(folder / "photo.jpg")
    with pytest.raises(ValueError, match="one shard of several: give its folder"):
        fetch(folder / "model-00001-of-00002.safetensors")


@pytest.mark.parametrize("stem", ["model.safetensors", "pytorch_model.bin", "own.safetensors"])
def test_a_sharded_folder_gives_its_index_and_its_shards(tmp_path: Path, stem: str) -> None:
    name, suffix = stem.split(".")
    shards = [f"{name}-0000{i}-of-00002.{suffix}" for i in (1, 2)]
    folder = write(tmp_path / "vit", *shards, "config.json")
    index = folder / f"{stem}.index.json"
    index.write_bytes(index_of(shards[1], shards[0], shards[1]))
    for source in (fetch(folder), fetch(index)):
        assert source.index == index
        assert source.weights == (folder / shards[0], folder / shards[1])
        assert source.config == folder / "config.json"


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "vit", "a.safetensors")
    (folder / "model.safetensors.index.json").write_bytes(index_of("a.safetensors", "b.safetensors"))
    with pytest.raises(FileNotFoundError, match=r"lacks b\.safetensors"):
        fetch(folder)


HOSTILE = ["/etc/x.safetensors", "../x.safetensors", "a/b.safetensors", "a\\b.safetensors", "C:x.safetensors"]
HOSTILE += ["x.pth", "..", "", ".hidden.safetensors", "x.safetensors\n", 7]


@pytest.mark.parametrize("shard", HOSTILE)
def test_an_index_may_name_only_plain_files_of_its_kind(tmp_path: Path, shard: object) -> None:
    write(tmp_path, "x.safetensors", "x.pth")
    folder = write(tmp_path / "vit", "x.pth", ".hidden.safetensors")
    (folder / "model.safetensors.index.json").write_bytes(index_of(shard))
    with pytest.raises(ValueError, match=r"names the shard .*expected a plain file name ending in '.safetensors'"):
        fetch(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": ["b"]}}', "[" * 10**5])
def test_a_file_that_is_no_index_is_refused(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path / "vit")
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=r'not the index of a checkpoint: expected {"weight_map"'):
        fetch(folder)


def test_an_index_without_shards_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "vit")
    (folder / "model.safetensors.index.json").write_bytes(index_of())
    with pytest.raises(ValueError, match="names no shards"):
        fetch(folder)


def test_a_link_out_of_the_folder_is_refused_unless_the_user_named_it(tmp_path: Path) -> None:
    outside = write(tmp_path, "secret.safetensors") / "secret.safetensors"
    folder = write(tmp_path / "vit")
    (folder / "model.safetensors").symlink_to(outside)
    with pytest.raises(ValueError, match=r"is a link to .*secret\.safetensors, outside its folder"):
        fetch(folder)
    assert fetch(folder / "model.safetensors").weights == (folder / "model.safetensors",)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_bytes(index_of("a.safetensors"))
    (folder / "a.safetensors").symlink_to(outside)
    with pytest.raises(ValueError, match="outside its folder"):
        fetch(folder)
    (folder / "a.safetensors").unlink()
    write(tmp_path / "blobs", "one")  # only a Hub snapshot has a claim on blobs
    (folder / "a.safetensors").symlink_to(tmp_path / "blobs" / "one")
    deeper = folder.rename(write(tmp_path / "folders") / "vit")
    with pytest.raises(ValueError, match="outside its folder"):
        fetch(deeper)


def test_links_within_the_folder_and_into_a_hub_cache_are_followed(tmp_path: Path) -> None:
    folder = write(tmp_path / "vit", "real.bin")
    (folder / "model.safetensors").symlink_to("real.bin")
    assert fetch(folder).weights == (folder / "model.safetensors",)
    repository = tmp_path / "hub" / "models--tiny--vit"
    snapshot = write(repository / "snapshots" / ("a" * 40))
    write(tmp_path / "another disk", "one")
    (repository / "blobs").symlink_to(tmp_path / "another disk")
    write(tmp_path / "hub" / "blobs", "two")
    (snapshot / "model.safetensors").symlink_to("../../blobs/one")
    (snapshot / "config.json").symlink_to("../../../blobs/two")
    assert fetch(snapshot).weights == (snapshot / "model.safetensors",)
    assert fetch(snapshot).config == snapshot / "config.json"
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(folder / "real.bin")
    with pytest.raises(ValueError, match="outside its folder"):
        fetch(snapshot)


def test_a_packaged_model_comes_from_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "vitreous"
    monkeypatch.setattr(fetching.resources, "files", lambda name: package)
    with pytest.raises(FileNotFoundError, match=r"this installation lacks the model 'cifar10'.*install vitreous again"):
        fetch("packaged:cifar10")
    folder = write(package / "weights/packaged/cifar10", "model.safetensors", "config.json")
    for name in ("packaged:cifar10", "cifar10"):
        source = fetch(name)
        assert (source.origin, source.name) == ("packaged", name)
        assert source.weights == (folder / "model.safetensors",)
        assert source.config == folder / "config.json"


def test_a_revision_is_for_hub_names_only(tmp_path: Path) -> None:
    folder = write(tmp_path / "vit", "model.safetensors")
    with pytest.raises(ValueError, match=r"'v1'.*for Hub names only"):
        fetch(folder, revision="v1")
    with pytest.raises(ValueError, match="names revision 'a', the argument 'b'"):
        fetch("tiny/vit@a", revision="b")


# The Hub


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("tiny/vit", "tiny/vit"),
        ("hf-hub:tiny/vit", "tiny/vit"),
        ("hf_hub:tiny/vit@main", "tiny/vit"),
        ("vit_tiny_patch16_224", "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"),
        ("vit_small_patch14_dinov2.lvd142m", "timm/vit_small_patch14_dinov2.lvd142m"),
    ],
)
def test_a_repository_is_downloaded(hub: LoopbackHub, tmp_path: Path, name: str, repository: str) -> None:
    contents = {
        "model.safetensors": WEIGHTS,
        "config.json": b"{}",
        "preprocessor_config.json": b"[]",
        "README.md": b"",
    }
    commit = hub.add(repository, {**contents, "pytorch_model.bin": b"another"})
    source = fetch(name)
    assert (source.name, source.origin, source.revision) == (name, "hub", commit)
    assert [path.read_bytes() for path in source.weights] == [WEIGHTS]
    assert source.config is not None
    assert source.config.read_bytes() == b"{}"
    assert source.preprocessor is not None
    assert source.preprocessor.read_bytes() == b"[]"
    assert source.weights[0].is_relative_to(tmp_path / "hub")
    assert not any("pytorch_model.bin" in asked or "README" in asked for asked in hub.asked)


def test_an_old_repository_gives_its_pickle_and_no_preprocessor(hub: LoopbackHub) -> None:
    hub.add("tiny/old", {"pytorch_model.bin": WEIGHTS})
    source = fetch("tiny/old")
    assert [path.name for path in source.weights] == ["pytorch_model.bin"]
    assert (source.config, source.preprocessor) == (None, None)


def test_a_repository_with_one_file_of_another_name_will_do(hub: LoopbackHub) -> None:
    hub.add("tiny/odd", {"dino_vits16.pth": WEIGHTS, "nested/other.pth": b""})
    assert [path.name for path in fetch("tiny/odd").weights] == ["dino_vits16.pth"]


@pytest.mark.parametrize(("name", "suffix"), [("model.safetensors", "safetensors"), ("pytorch_model.bin", "bin")])
def test_a_sharded_repository_is_downloaded_completely(hub: LoopbackHub, name: str, suffix: str) -> None:
    shards = {f"part-0000{i}-of-00002.{suffix}": bytes([i]) * 100 for i in (1, 2)}
    hub.add("tiny/big", {**shards, f"{name}.index.json": index_of(*shards)})
    for attempt in ("online", "offline"):
        source = fetch("tiny/big")
        assert [path.read_bytes() for path in source.weights] == list(shards.values()), attempt
        assert source.index is not None
        assert source.index.name == f"{name}.index.json"
        hub.close()


@pytest.mark.parametrize("shard", ["../other/model.safetensors", "/etc/passwd", "a/b.safetensors", "evil.bin"])
def test_a_hostile_index_of_a_repository_is_refused_before_asking(hub: LoopbackHub, shard: str) -> None:
    hub.add("tiny/evil", {"model.safetensors.index.json": index_of(shard), shard: b"gotcha"})
    with pytest.raises(ValueError, match="expected a plain file name"):
        fetch("tiny/evil")
    assert {asked.rpartition("/")[2] for asked in hub.asked if "resolve" in asked} == {"model.safetensors.index.json"}


def test_a_shard_that_the_repository_lacks_is_named(hub: LoopbackHub) -> None:
    hub.add("tiny/vit", {"model.safetensors.index.json": index_of("a.safetensors")})
    with pytest.raises(FileNotFoundError, match=r"tiny/vit has no file 'a\.safetensors'"):
        fetch("tiny/vit")


def test_a_revision_is_pinned(hub: LoopbackHub) -> None:
    first = hub.add("tiny/vit", {"model.safetensors": b"first"})
    hub.add("tiny/vit", {"model.safetensors": b"draft"}, branch="draft")
    second = hub.add("tiny/vit", {"model.safetensors": b"second"})
    wanted = {None: b"second", "main": b"second", first: b"first", second: b"second", "draft": b"draft"}
    for revision, content in wanted.items():
        assert fetch("tiny/vit", revision=revision).weights[0].read_bytes() == content
        at = fetch(f"tiny/vit@{revision}" if revision else "tiny/vit")
        assert at.weights[0].read_bytes() == content
    assert fetch("tiny/vit", revision=first).revision == first


def test_all_files_are_of_one_commit_even_if_the_branch_moves(hub: LoopbackHub) -> None:
    hub.add("tiny/vit", {"model.safetensors": b"old", "config.json": b"old"})
    answer = hub.answer

    def move(path: str) -> Answer:
        result = answer(path)
        if path.endswith("main/model.safetensors") and "GET" in hub.asked[-1]:
            hub.add("tiny/vit", {"model.safetensors": b"new", "config.json": b"new"})
        return result

    hub.answer = move  # type: ignore[method-assign]
    source = fetch("tiny/vit")
    assert source.config is not None
    assert (source.weights[0].read_bytes(), source.config.read_bytes()) == (b"old", b"old")
    assert fetch("tiny/vit").weights[0].read_bytes() == b"new"


def test_the_cache_serves_when_the_hub_is_gone(hub: LoopbackHub) -> None:
    commit = hub.add("tiny/vit", {"model.safetensors": WEIGHTS, "config.json": b"{}"})
    online = fetch("tiny/vit")
    hub.close()
    assert fetch("tiny/vit") == online
    assert fetch("tiny/vit", revision=commit) == dataclasses.replace(online, name="tiny/vit")
    with pytest.raises(ConnectionError, match="tiny/vit is not in the cache.*reached.*file or folder on this disk"):
        fetch("tiny/vit", revision="never-seen")


def test_the_cache_serves_in_offline_mode(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("tiny/vit", {"model.safetensors": WEIGHTS})
    online = fetch("tiny/vit")
    asked = len(hub.asked)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert fetch("tiny/vit") == online
    write(Path(), "model.safetensors")  # which is not what was asked for
    with pytest.raises(ConnectionError, match=r"tiny/other is not in the cache .* HF_HUB_OFFLINE"):
        fetch("tiny/other")
    assert len(hub.asked) == asked


def test_a_second_fetch_downloads_nothing(hub: LoopbackHub) -> None:
    hub.add("tiny/vit", {"model.safetensors": WEIGHTS, "config.json": b"{}"})
    online = fetch("tiny/vit")
    del hub.asked[:]
    assert fetch("tiny/vit") == online
    assert [asked for asked in hub.asked if "GET" in asked and "resolve" in asked] == []


def test_a_cache_with_only_a_part_says_so_when_the_hub_is_gone(hub: LoopbackHub) -> None:
    from huggingface_hub import hf_hub_download

    hub.add("tiny/vit", {"model.safetensors": WEIGHTS, "config.json": b"{}"})
    hf_hub_download("tiny/vit", "config.json")
    hub.close()
    with pytest.raises(ConnectionError, match="tiny/vit is not in the cache and the hub cannot be reached"):
        fetch("tiny/vit")


def test_a_part_that_the_client_calls_incomplete_will_do_if_the_weights_are_in_it(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    hub.add("tiny/vit", {"model.safetensors": WEIGHTS})
    online = fetch("tiny/vit")
    hub.close()

    def refuse(*arguments: object, **options: object) -> None:
        error = LocalEntryNotFoundError("some files are missing")
        error.snapshot_path = str(online.weights[0].parent)  # type: ignore[attr-defined]
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    assert fetch("tiny/vit") == online


def test_a_cache_folder_may_be_given(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("tiny/vit", {"model.safetensors": WEIGHTS})
    source = fetch("tiny/vit", cache_dir=tmp_path / "mine")
    assert source.weights[0].is_relative_to(tmp_path / "mine" / "huggingface")
    assert not (tmp_path / "hub").exists()
    hub.close()
    assert fetch("tiny/vit", cache_dir=tmp_path / "mine") == source


def test_a_snapshot_folder_of_the_cache_can_be_given_as_a_path(hub: LoopbackHub) -> None:
    hub.add("tiny/vit", {"model.safetensors": WEIGHTS, "config.json": b"{}"})
    source = fetch("tiny/vit")
    folder = source.weights[0].parent
    assert fetch(folder).weights == source.weights
    assert fetch(folder).origin == "folder"


def test_a_repository_that_does_not_exist_asks_for_the_spelling(hub: LoopbackHub) -> None:
    with pytest.raises(FileNotFoundError, match=r"the Hub has no repository 'tiny/vti', .*: check the spelling"):
        fetch("tiny/vti")


def test_a_mistyped_folder_is_called_one_and_a_name_of_the_hub_is_not(hub: LoopbackHub) -> None:
    write(Path("runs/digits"), "model.safetensors")
    with pytest.raises(FileNotFoundError, match=r"the folder runs here holds no digts: check the spelling"):
        fetch("runs/digts")
    with pytest.raises(FileNotFoundError) as stop:
        fetch("vit_tiny_patch16_224")
    assert "the folder" not in str(stop.value)
    hub.close()
    with pytest.raises(ConnectionError, match=r"reached, and the folder runs here holds no digts: check the name"):
        fetch("runs/digts")


def test_a_revision_that_does_not_exist_is_named(hub: LoopbackHub) -> None:
    hub.add("tiny/vit", {"model.safetensors": WEIGHTS})
    with pytest.raises(FileNotFoundError, match="tiny/vit has no revision 'v9': expected a branch"):
        fetch("tiny/vit@v9")


def test_a_gated_repository_asks_for_a_token(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("tiny/vit", {"model.safetensors": WEIGHTS})
    hub.gated.add("tiny/vit")
    with pytest.raises(PermissionError, match="tiny/vit is gated and needs a token"):
        fetch("tiny/vit")
    assert leftovers(tmp_path / "hub") == []


def test_a_repository_without_weights_lists_its_files(hub: LoopbackHub) -> None:
    hub.add("tiny/vit", {"README.md": b"", "weights.dat": b""})
    with pytest.raises(FileNotFoundError, match=r"tiny/vit holds no weights: .* found README\.md, weights\.dat"):
        fetch("tiny/vit")
    hub.add("tiny/vit", {"README.md": b"", "flax_model.msgpack": b""})
    with pytest.raises(FileNotFoundError, match=r"tiny/vit holds flax_model\.msgpack, Flax weights"):
        fetch("tiny/vit")


def test_a_name_the_hub_cannot_have_is_one_plain_line(hub: LoopbackHub) -> None:
    with pytest.raises(ValueError, match="'tiny/vit--x' cannot be the name of a Hub repository") as caught:
        fetch("tiny/vit--x")
    assert "\n" not in str(caught.value)


# torchvision


@pytest.fixture
def torchvision_file(files: LoopbackFiles, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let torchvision's own ResNet-18 weights be a small file on loopback; return its path there."""
    from torchvision.models import ResNet18_Weights

    path = f"/models/resnet18-{hashlib.sha256(WEIGHTS).hexdigest()[:8]}.pth"
    files.files[path] = WEIGHTS
    member = ResNet18_Weights.IMAGENET1K_V1
    monkeypatch.setattr(member, "_value_", dataclasses.replace(member.value, url=files.url + path))
    return path


@pytest.mark.parametrize("name", ["resnet18", "torchvision:resnet18", "torchvision:resnet18/IMAGENET1K_V1"])
def test_torchvision_weights_come_to_its_own_cache(
    files: LoopbackFiles, torchvision_file: str, tmp_path: Path, name: str
) -> None:
    from torchvision.models import ResNet18_Weights

    source = fetch(name)
    assert (source.name, source.origin) == (name, "torchvision")
    assert source.weights_enum is ResNet18_Weights.IMAGENET1K_V1
    assert source.weights == (tmp_path / "torch" / "hub" / "checkpoints" / Path(torchvision_file).name,)
    assert source.weights[0].read_bytes() == WEIGHTS
    files.close()
    assert fetch(name) == source
    with pytest.raises(ConnectionError):
        fetch(name, cache_dir=tmp_path / "mine")


def test_torchvision_bytes_with_the_wrong_hash_are_refused(
    files: LoopbackFiles, torchvision_file: str, tmp_path: Path
) -> None:
    expected, got = (hashlib.sha256(data).hexdigest()[:8] for data in (WEIGHTS, WEIGHTS[::-1]))
    files.wrong[torchvision_file] = WEIGHTS[::-1]
    with pytest.raises(ValueError, match=f"wrong bytes: expected sha256 {expected}…, got {got}…"):
        fetch("resnet18")
    assert leftovers(tmp_path / "torch") == []
    files.wrong.clear()
    path = fetch("resnet18").weights[0]
    path.write_bytes(WEIGHTS[::-1])  # as another program may leave it
    with pytest.raises(ValueError, match=f"expected sha256 {expected}…, got {got}…: delete that file"):
        fetch("resnet18")
    assert path.exists()


def test_torchvision_names_that_do_not_exist_list_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"torchvision has no model 'vit_b_61': .*resnet18.*vit_b_16"):
        fetch("torchvision:vit_b_61")
    with pytest.raises(ValueError, match="vit_b_16 has no weights 'NONE': it has IMAGENET1K_V1, IMAGENET1K_SWAG"):
        fetch("torchvision:vit_b_16.NONE")


# Google's bucket, and any address


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("ViT-B_16.npz", "imagenet21k/ViT-B_16.npz"),
        ("imagenet21k+imagenet2012/ViT-B_16.npz", "imagenet21k+imagenet2012/ViT-B_16.npz"),
        (AUGREG, f"augreg/{AUGREG}"),
        ("gs://vit_models/sam/ViT-B_16.npz", "sam/ViT-B_16.npz"),
    ],
)
def test_googles_files_come_from_its_bucket(files: LoopbackFiles, tmp_path: Path, name: str, path: str) -> None:
    files.files[f"/vit_models/{path}"] = WEIGHTS
    source = fetch(name, bucket=f"{files.url}/vit_models")
    assert (source.name, source.origin) == (name, "google")
    assert files.asked == [f"GET /vit_models/{quote(path)}"]
    assert source.weights == (tmp_path / "cache" / "google" / path,)
    assert source.weights[0].read_bytes() == WEIGHTS
    files.close()
    assert fetch(name, bucket=f"{files.url}/vit_models") == source


def test_a_file_that_google_does_not_have_says_so(files: LoopbackFiles, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file at http://.*/imagenet21k/ViT-Z_9\.npz"):
        fetch("ViT-Z_9.npz", bucket=files.url)
    files.refused.add("/imagenet21k/ViT-Z_9.npz")
    with pytest.raises(PermissionError, match=r"ViT-Z_9\.npz answered 403"):
        fetch("ViT-Z_9.npz", bucket=files.url)
    assert leftovers(tmp_path / "cache") == []


def test_an_address_is_downloaded_once(files: LoopbackFiles, tmp_path: Path) -> None:
    files.files["/a/vit.safetensors"] = WEIGHTS
    files.files["/b/vit.safetensors"] = WEIGHTS[::-1]
    first, second = (fetch(f"{files.url}/{folder}/vit.safetensors") for folder in "ab")
    assert first.origin == "url"
    assert first.weights[0].name == "vit.safetensors"
    assert first.weights[0].is_relative_to(tmp_path / "cache")
    assert first.weights[0].read_bytes() == WEIGHTS
    assert second.weights[0].read_bytes() == WEIGHTS[::-1]
    files.close()
    assert fetch(f"{files.url}/a/vit.safetensors") == first
    with pytest.raises(ConnectionError, match="check the network and try again"):
        fetch(f"{files.url}/c/vit.safetensors")
