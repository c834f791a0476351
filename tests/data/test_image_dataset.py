"""A labelled set: what is taken, join_datasets, named and fingerprinted, without an image being opened."""

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.data.dataset_source import DatasetSource, split_parts
from vitreous.data.image_dataset import ImageDataset, digest, join_datasets, list_some


def zoo(name="zoo", labels=(0, 1, 0), names=("cat", "dog"), version="somewhere"):
    return ImageDataset(name, names, labels, partial(_image, name), version=partial(str, version))


def _image(name, i):
    return Path(f"{name}-{i}.png")


def test_a_taken_image_keeps_its_own_name():
    taken = zoo().take([2, 1]).take([1])
    assert (taken.labels, taken.image(0), taken.describe(0)) == ((1,), Path("zoo-1.png"), "zoo #1")


def test_joined_datasets_give_the_images_of_each_in_turn():
    both = join_datasets([zoo(), zoo("farm", (1,)), zoo("pond", (0, 0)).take([1])])
    assert (both.name, both.labels) == ("zoo+farm+pond", (0, 1, 0, 1, 0))
    assert [str(both.image(i)) for i in range(5)] == [
        "zoo-0.png", "zoo-1.png", "zoo-2.png", "farm-0.png", "pond-1.png",
    ]  # fmt: skip
    assert [both.describe(i) for i in (2, 3, 4)] == ["zoo #2", "farm #0", "pond #1"]
    with pytest.raises(IndexError):
        both.image(5)


def test_only_datasets_of_the_same_classes_are_joined():
    with pytest.raises(ValueError, match="zoo and farm have different classes"):
        join_datasets([zoo(), zoo("farm", names=("cat", "cow"))])


def test_the_fingerprint_changes_with_images_labels_classes_choice_and_order():
    whole = zoo()
    others = [
        whole,
        zoo(version="elsewhere"),
        zoo(labels=(0, 1, 1)),
        zoo(names=("cat", "cow")),
        replace(whole, labels=(1, 1, 0)),
        whole.take([0, 2]),
        whole.take([2, 0]),
        whole.take([0, 2]).take([1, 0, 0]),
        join_datasets([whole, whole]),
        join_datasets([whole, zoo(version="elsewhere")]),
        join_datasets([zoo(version="elsewhere"), whole]),
        join_datasets([whole.take([0]), whole.take([1, 2])]),
    ]
    assert len({data.fingerprint for data in others}) == len(others)
    assert whole.fingerprint == zoo().fingerprint == pickle.loads(pickle.dumps(whole)).fingerprint
    assert whole.take([0, 2]).fingerprint == zoo().take((0, 2)).fingerprint


def test_images_from_nowhere_never_share_a_fingerprint():
    one, other = (ImageDataset("zoo", ("cat",), (0,), Path) for _ in range(2))
    assert one.fingerprint == one.fingerprint != other.fingerprint


def test_datasets_can_be_pickled():
    data = join_datasets([zoo().take([2, 0]), zoo("farm")])
    copy = pickle.loads(pickle.dumps(data))
    assert [copy.describe(i) for i in range(5)] == [data.describe(i) for i in range(5)]
    assert copy.image(0) == data.image(0) == Path("zoo-2.png")


def test_labels_are_counted_in_another_list_of_classes():
    data = zoo().with_classes(("dog", "emu", "cat"))
    assert (data.labels, data.class_names) == ((2, 0, 2), ("dog", "emu", "cat"))
    with pytest.raises(ValueError, match="zoo has classes that are not among the 1 expected: 'cat'"):
        zoo().with_classes(("dog",))


def test_a_spread_is_even_and_no_larger_than_asked():
    assert zoo(labels=(0, 0, 1, 1)).spread(2).labels == (0, 1)
    assert len(zoo().spread(9)) == 3
    with pytest.raises(ValueError, match="at least 1"):
        zoo().spread(0)


def test_words_are_kept_apart_and_lists_short():
    assert len({digest(words) for words in (["ab"], ["a", "b"], ["a", "b", ""], ["b", "a"])}) == 4
    assert list_some(list("abcde")) == "'a', 'b', 'c' and 2 more"


def dataset(name):
    return lambda: ImageDataset(name, ("cat", "dog"), (0, 1), Path)


def test_a_split_is_found_by_its_usual_names():
    source = DatasetSource("zoo", {"training": dataset("a"), "val": dataset("b")})
    assert source.open("train").name == "a"
    assert source.open("test").name == source.open("validation").name == "b"
    assert source.open("train+validation").name == "a+b"
    assert source.spelled("test", without=["val"]) is None


def test_a_source_without_splits_is_a_test_split():
    source = DatasetSource("zoo", {}, dataset("all"))
    assert source.open("test").name == "all"
    with pytest.raises(FileNotFoundError, match="^zoo has no train split$"):
        source.open("train")


def test_a_missing_split_is_named_with_those_there_are_and_where_it_is_expected():
    source = DatasetSource("zoo", {"train": dataset("a")}, part="{}/ folder", layout="zoo/{}/<class>/<image>")
    with pytest.raises(FileNotFoundError, match=r"no test/ folder \(it has train\): expected zoo/test/<class>"):
        source.open("test")


@pytest.mark.parametrize(("split", "reason"), [("dev", "must be one of train"), ("test+test", "names a part twice")])
def test_other_splits_are_refused(split, reason):
    with pytest.raises(ValueError, match=reason):
        split_parts(split)


# --- other tasks ------------------------------------------------------------------------------------------------------


def farm(task, names, name="farm", images=3):
    """Image i has the numbers i, i + 1 and so on (or these labels of 0 and 1), or a mask of the class i."""
    numbers = np.arange(images)[:, None] + np.arange(len(names))
    targets = {"multilabel": numbers % 2, "regress": numbers + 0.5, "segment": None}[task]
    return ImageDataset(
        name,
        names,
        (0,) * images,
        partial(_image, name),
        version=partial(str, "somewhere"),
        task=task,
        targets=None if targets is None else targets.astype(np.float32),
        mask=_mask if task == "segment" else None,
    )


def _mask(i):
    return Image.frombytes("L", (2, 1), bytes([i, 255]))


def values(data):
    """Targets or masks, image by image."""
    if data.mask is None:
        return data.targets.tolist()
    return [list(data.mask(i).tobytes()) for i in range(len(data))]


@pytest.mark.parametrize("task", ["multilabel", "regress", "segment"])
def test_targets_and_masks_are_taken_joined_and_pickled_with_their_images(task):
    data = farm(task, ("a", "b", "c"))
    assert values(data.take([2, 0]).take([1, 0])) == [values(data)[0], values(data)[2]]
    assert values(data.spread(2)) == [values(data)[0], values(data)[1]]
    both = join_datasets([data, data.take([1])])
    assert (both.task, both.class_names) == (task, data.class_names)
    assert values(both) == [*values(data), values(data)[1]]
    assert values(pickle.loads(pickle.dumps(both.take([3, 0])))) == [values(data)[1], values(data)[0]]
    with pytest.raises(ValueError, match=f"zoo is to classify, farm to {task}: these cannot be joined"):
        join_datasets([zoo(names=data.class_names), data])


def test_targets_and_masks_follow_another_order_of_names():
    names = ("c", "a", "new", "b")
    assert values(farm("multilabel", ("a", "b", "c")).with_classes(names)) == [[0, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 1]]
    assert values(farm("segment", ("a", "b", "c")).with_classes(names)) == [[1, 255], [3, 255], [0, 255]]
    swapped = farm("regress", ("a", "b")).with_classes(("b", "a"))
    assert values(swapped) == [[1.5, 0.5], [2.5, 1.5], [3.5, 2.5]]
    assert values(farm("multilabel", ("a", "b"), images=1).with_classes(("b",))) == [[1]]  # no image has the label a
    with pytest.raises(ValueError, match="farm has labels that are not among the 1 expected: 'b'"):
        farm("multilabel", ("a", "b")).with_classes(("a",))
    with pytest.raises(ValueError, match="farm has pixel classes that are not among the 1 expected: 'b'"):
        farm("segment", ("a", "b")).with_classes(("a",))
    with pytest.raises(ValueError, match="farm lacks numbers that are expected: 'new'"):
        farm("regress", ("a",)).with_classes(("a", "new"))


def test_the_fingerprint_tells_tasks_and_targets_apart():
    datasets = [farm(task, ("a", "b")) for task in ("multilabel", "regress", "segment")]
    datasets += [zoo(labels=(0, 0, 0), names=("a", "b"))]
    datasets += [replace(datasets[1], targets=datasets[1].targets + 1)]
    assert len({data.fingerprint for data in datasets}) == 5
    assert datasets[0].fingerprint == farm("multilabel", ("a", "b")).fingerprint


def test_a_dataset_says_what_its_names_are():
    assert [repr(farm(task, ("a", "b"))).split(", ")[1] for task in ("multilabel", "regress", "segment")] == [
        "2 labels)",
        "2 numbers)",
        "2 pixel classes)",
    ]
    assert repr(farm("regress", ("a",))).endswith("1 number)")
    assert repr(farm("segment", ("a",))).endswith("1 pixel class)")
