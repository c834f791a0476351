"""How wide words are, and how to make them fit: measured before a figure exists, so that its margins can be exact."""

from functools import lru_cache

from matplotlib.font_manager import FontProperties, get_font_names
from matplotlib.textpath import text_to_path

TITLE, BODY, SMALL, TINY = 10.5, 9.0, 8.0, 7.0
"""Type sizes in points. A card is at most 7.2 inches wide, so 9 points are 14 pixels on an 800 pixel page."""

MONO = "DejaVu Sans Mono"
_HAN = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "PingFang SC", "Hiragino Sans", "Microsoft YaHei")


@lru_cache(maxsize=1)
def families() -> list[str]:
    """The one face that comes with matplotlib everywhere; for what it lacks, faces that this computer has."""
    installed = set(get_font_names())
    return ["DejaVu Sans", *(name for name in _HAN if name in installed)]


def line_height(size: float) -> float:
    """Inches from one line to the next."""
    return 1.3 * size / 72


@lru_cache(maxsize=4096)
def text_width(text: str, size: float = BODY, weight: str = "normal", family: str = "") -> float:
    """Inches that one line of text takes.

    >>> 0.6 < text_width("Hello world") < 0.8
    True
    """
    font = FontProperties(family=family or families(), size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, font, False)[0]) / 72


def elide(text: str, width: float, size: float = BODY, weight: str = "normal", family: str = "") -> str:
    """One line of text, cut with an ellipsis to fit `width` inches, between words where that loses little.

    >>> elide("Maltese dog, Maltese terrier, Maltese", 1.6)
    'Maltese dog, Maltese…'
    """
    text = " ".join(text.split())
    if text_width(text, size, weight, family) <= width:
        return text
    low, high = 0, len(text)  # the longest beginning that fits lies in low..high-1
    while high - low > 1:
        middle = (low + high) // 2
        fits = text_width(text[:middle] + "…", size, weight, family) <= width
        low, high = (middle, high) if fits else (low, middle)
    cut = text[:low]
    space = cut.rfind(" ")
    if not text[low].isspace() and space > 0.6 * low:
        cut = cut[:space]
    return cut.rstrip(" ,;:-–(") + "…"


def wrap(text: str, width: float, size: float = BODY, weight: str = "normal", lines: int = 2) -> list[str]:
    """Text broken between words into at most `lines` lines of `width` inches; the last is elided.

    >>> wrap("Attention of the class token", 1.5, lines=2)
    ['Attention of the class', 'token']
    """
    words = text.split()
    broken: list[str] = []
    while words and len(broken) < lines - 1:
        count = len(words)
        while count > 1 and text_width(" ".join(words[:count]), size, weight) > width:
            count -= 1
        broken.append(elide(" ".join(words[:count]), width, size, weight))
        words = words[count:]
    return [*broken, elide(" ".join(words), width, size, weight)] if words else broken


def percent(share: float) -> str:
    """A share of 1 in percent, with as many digits as help.

    >>> percent(0.9312), percent(0.0312), percent(0.0001), percent(1.0), percent(float("nan"))
    ('93.1 %', '3.1 %', '< 0.1 %', '100 %', '–')
    """
    if share != share:
        return "–"
    if 0 < share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.1f} %".replace("100.0", "100").replace("-", "−") if share else "0 %"
