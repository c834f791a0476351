"""Pictures to begin with: what `classify` and `explain` show when no picture is named."""

from PIL.Image import Image

from vitreous.data.datasets import open_set


def samples() -> dict[str, Image]:
    """One held-out picture of each class that the packaged model knows: scikit-learn's digits.

    >>> list(samples())[:2]
    ['digit-0', 'digit-1']
    """
    found = open_set("digits", split="test")
    last = {label: i for i, label in enumerate(found.labels)}
    pictures: dict[str, Image] = {}
    for label in sorted(last):
        picture = found.picture(last[label])
        assert isinstance(picture, Image)
        pictures[f"digit-{found.class_names[label]}"] = picture
    return pictures
