"""The right columns are chosen, and classes are numbered the same whatever they are written as."""

import pytest

from vitreous.data.sources.columns import choose_columns, number_labels

IMAGE, VALUE = {"_type": "Image"}, {"_type": "Value"}


def classes(*names):
    return {"_type": "ClassLabel", "names": list(names)}


def test_cifar100s_fine_classes_are_preferred_to_the_coarse_ones():
    features = {"img": IMAGE, "fine_label": classes("apple", "bear"), "coarse_label": classes("fruit")}
    assert choose_columns(features, "cifar100").label == "fine_label"
    assert choose_columns(features, "cifar100").class_names == ("apple", "bear")


def test_a_column_that_says_it_holds_classes_wins_over_its_name():
    assert choose_columns({"image": IMAGE, "breed": classes("pug"), "text": VALUE}, "dogs").label == "breed"
    assert choose_columns({"photo": IMAGE, "label": VALUE}, "dogs").image == "photo"


def test_a_table_without_such_columns_is_refused_with_what_it_has():
    with pytest.raises(ValueError, match="words has no single column of images: .* image or img; it has text, label"):
        choose_columns({"text": VALUE, "label": classes("good", "bad")}, "words")
    with pytest.raises(ValueError, match="faces has no single column of classes: .*; it has image, age"):
        choose_columns({"image": IMAGE, "age": VALUE}, "faces")
    with pytest.raises(ValueError, match="pairs has no single column of images"):
        choose_columns({"left": IMAGE, "right": IMAGE, "label": VALUE}, "pairs")


def test_missing_and_impossible_classes_are_refused():
    with pytest.raises(ValueError, match="2 of 3 images of zoo have no class"):
        number_labels([None, 0, -1], ("a",), "zoo")
    with pytest.raises(ValueError, match="zoo has class 2, but its description names 2 classes"):
        number_labels([0, 2], ("a", "b"), "zoo")
    with pytest.raises(ValueError, match="whole numbers or words, got float"):
        number_labels([0.5], None, "zoo")
    with pytest.raises(ValueError, match="does not name: 'c'"):
        number_labels(["a", "c"], ("a", "b"), "zoo")
