"""The step size over a run: a warm-up in a straight line, then half a cosine. A function of the step alone."""

import math


def rate(step: int, steps: int, warmup: int = 0, final: float = 0.0) -> float:
    """The share of the largest step size at update `step` of `steps`: it begins above 0 and ends at `final`.

    Without a state there is nothing to restore after a restart (torch's `SequentialLR` keeps one).

    >>> [round(rate(step, 8, warmup=2), 2) for step in range(8)]
    [0.5, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07]
    """
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
