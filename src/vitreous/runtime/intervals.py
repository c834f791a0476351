"""How far a share of counted things may lie from the truth (Wilson, 1927)."""

from math import sqrt
from statistics import NormalDist


def wilson(hits: int, count: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share: what one count of `hits` among `count` can say; all or nothing where there is none.

    >>> [round(end, 4) for end in wilson(95, 100)], wilson(0, 0)
    ([0.8882, 0.9785], (0.0, 1.0))
    """
    if not count:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, spread = hits / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * sqrt(share * (1 - share) / count + spread / count / 4)
    return max(0.0, middle - half), min(1.0, middle + half)
