import pytest

from vitreous.predict.class_match import match_classes
from vitreous.weights.sidecar import imagenet_names, imagenet_wordnet_ids


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


def test_wordnet_ids_are_sorted_and_complete():
    ids = imagenet_wordnet_ids()
    assert len(set(ids)) == 1000
    assert list(ids) == sorted(ids)  # ImageNet's class order is that of the ids
    assert len(imagenet_names()) == 1000
