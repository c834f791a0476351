"""Class names: a dataset's in a model's order, and what a user typed."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vitreous.predict.class_matching import find_class, match_classes, suggest_classes
from vitreous.weights.class_names import imagenet_names


def test_classes_are_matched_by_name_id_or_number():
    names = imagenet_names()
    assert match_classes(["church", "Egyptian_cat"], names, 1000) == [497, 285]
    assert match_classes(["n03028079"], names, 1000) == [497]
    assert match_classes(["0497", "7"], names, 1000) == [497, 7]
    assert match_classes(["7", "0"], [str(i) for i in range(10)], 10) == [7, 0]
    for wrong, message in (
        (["zebra", "unicorn"], "1 of 2 classes are not the model's, such as 'unicorn'"),
        (["1000"], "0 to 999"),
        (["n00000000"], "WordNet"),
    ):
        with pytest.raises(ValueError, match=message):
            match_classes(wrong, names, 1000)
    with pytest.raises(ValueError, match="not ImageNet-1k's"):
        match_classes(["n03028079"], ["a", "b"], 2)


def imagenet(**card):
    """All that `find_class` asks of a model of ImageNet's classes."""
    card = {"class_names": imagenet_names(), "name": "vit_tiny", "origin": "hub"} | card
    return SimpleNamespace(card=SimpleNamespace(**card))


def test_a_class_is_found_by_name_index_and_other_spellings():
    assert [find_class(word, imagenet()) for word in ("church", "497", 497, None, "Church")] == [
        497,
        497,
        497,
        None,
        497,
    ]
    assert find_class("egyptian_cat", imagenet()) == 285


@pytest.mark.parametrize(
    "target", [np.int64(3), np.uint8(3), np.array(3), torch.tensor(3), torch.tensor([9, 3]).argmin() + 2]
)
def test_an_index_may_be_an_integer_of_numpy_or_torch(target):
    assert type(found := find_class(target, imagenet())) is int
    assert found == 3


@pytest.mark.parametrize(
    "target", [True, np.True_, torch.tensor(True), 3.0, np.float32(3), torch.tensor(3.0), torch.tensor([1, 2]), [3]]
)
def test_what_is_no_index_of_a_class_is_refused(target):
    with pytest.raises(ValueError, match="expected a class's name or its index, a whole number, got"):
        find_class(target, imagenet())


CRANES = ("crane", "dog", "crane", "Tabby Cat")
"""Names as the Hub's ImageNet models have them: the bird and the machine are called alike."""


@pytest.mark.parametrize("word", ["crane", "Crane"])
def test_a_name_of_several_classes_is_refused_with_their_indices(word):
    with pytest.raises(ValueError, match="2 of the model's classes are called 'crane': 0 and 2: give an index"):
        find_class(word, imagenet(class_names=CRANES))
    assert [find_class(word, imagenet(class_names=CRANES)) for word in ("2", "dog", "tabby cat")] == [2, 1, 3]


@pytest.mark.parametrize("names", [["dog", "crane"], ["tabby_cat", "crane"], ["Crane", "dog"]])
def test_a_dataset_that_uses_a_name_of_several_classes_is_refused(names):
    with pytest.raises(ValueError, match="2 of the model's classes are called '[cC]rane': 0 and 2: use class indices"):
        match_classes(names, CRANES, 4)


def test_names_of_several_classes_do_no_harm_where_they_are_not_used():
    assert match_classes(["dog", "Tabby Cat"], CRANES, 4) == [1, 3]
    assert match_classes(["2", "0"], CRANES, 4) == [2, 0]
    assert match_classes(CRANES, CRANES, 4) == [0, 1, 2, 3]
    assert match_classes(["cardigan", "Cardigan"], imagenet_names(), 1000) == [474, 264]
    with pytest.raises(ValueError, match="2 of the model's classes are called 'CARDIGAN': 264 and 474"):
        match_classes(["CARDIGAN"], imagenet_names(), 1000)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("cathedral", "`vitreous doctor --classes --model vit_tiny` lists them"),
        ("santorini", "`vitreous doctor --classes --model vit_tiny` lists them"),
        ("xq", "`vitreous doctor --classes --model vit_tiny` lists them"),
        ("tabby cat", "did you mean tabby?"),
        ("churhc", "did you mean church?"),
        ("terrrier", "did you mean toy terrier, "),
        ("boathous", "did you mean boathouse?"),
    ],
)
def test_a_class_that_is_not_there_suggests_what_is_alike_and_nothing_else(word, hint):
    with pytest.raises(ValueError, match=f"the model has no class {word!r}") as caught:
        find_class(word, imagenet())
    assert hint in str(caught.value)


def test_names_that_hold_the_word_come_first_and_whole_words_before_others():
    cats = suggest_classes("cat", imagenet_names())
    assert len(cats) == 5
    assert all("cat" in name.lower().split() for name in cats)
    assert suggest_classes("cat", ["catamaran", "tabby cat", "dog"]) == ["tabby cat", "catamaran"]


def test_few_classes_are_listed_and_nameless_ones_have_indices():
    with pytest.raises(ValueError, match="its classes are a, b"):
        find_class("unicorn", imagenet(class_names=("a", "b")))
    with pytest.raises(ValueError, match="its classes have no names: give an index"):
        find_class("unicorn", imagenet(class_names=None))
    with pytest.raises(ValueError, match=r"`vitreous doctor --classes` lists them"):
        find_class("cathedral", imagenet(origin="packaged"))
