"""Write numbers for messages, figures and pages: a count with its noun, a duration, a share, an accuracy, a figure."""

FIGURES: dict[str, tuple[str, str]] = {
    "map": ("mAP", ".3f"),
    "average_precision": ("AP", ".3f"),
    "f1": ("F1 at 0.5", ".3f"),
    "f1_at_thresholds": ("F1 at thresholds", ".3f"),
    "r2": ("R²", ".3f"),
    "mae": ("MAE", ".4g"),
    "rmse": ("RMSE", ".4g"),
    "miou": ("mean IoU", ".2%"),
    "iou": ("IoU", ".2%"),
    "pixel_accuracy": ("pixel accuracy", ".2%"),
    "boundary_f": ("boundary F", ".3f"),
}
"""A figure of labels, numbers or masks, as files name it → its name in words, and its format."""


def count(number: int, noun: str) -> str:
    """Write a number of things with its noun, in the plural unless it is one.

    >>> count(1, "image"), count(1200, "image"), count(2, "class")
    ('1 image', '1,200 images', '2 classes')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


def duration(seconds: float) -> str:
    """Write a number of seconds in the usual units, as a duration.

    >>> duration(4.26), duration(38.2), duration(260), duration(7270)
    ('4.3 s', '38 s', '4 min 20 s', '2 h 01 min')
    """
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def percent(share: float) -> str:
    """Write a share of 1 in percent, with as many digits as help.

    >>> percent(0.9312), percent(0.0312), percent(0.0001), percent(1.0), percent(float("nan"))
    ('93.1 %', '3.1 %', '< 0.1 %', '100 %', '–')
    """
    if share != share:
        return "–"
    if 0 < share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.1f} %".replace("100.0", "100").replace("-", "−") if share else "0 %"


def accuracy(share: float) -> str:
    """Write an accuracy from 0 to 1 to a hundredth of a percent; only all is 100 %.

    >>> accuracy(0.98765), accuracy(0.99998), accuracy(1.0)
    ('98.77 %', '99.99 %', '100 %')
    """
    return "100 %" if share == 1 else f"{min(100 * share, 99.99):.2f} %"


def figure(name: str, value: float) -> str:
    """Choose the wording of a number by its figure's name in files: in percent, or with as many digits as suit.

    >>> figure("miou", 0.95321), figure("mae", 4.12345), figure("r2", 0.9)
    ('95.32%', '4.123', '0.900')
    """
    return format(value, FIGURES[name][1])


def format_number(value: float) -> str:
    """Write a number for messages, figures and pages with four digits, or all before the point.

    >>> [format_number(value) for value in (-23.4567, 0.00123456, 184223.4, 3.0)]
    ['-23.46', '0.001235', '184223', '3']
    """
    return f"{value:.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"
