"""`--fast`: what a command computes with instead of the plain model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from torch import Tensor


MANY = 64
"""Images from which on laying weights out anew, some tenths of a second, is made up for."""


def faster(
    model: Any,
    compute: Callable[[Any, Tensor], Tensor],
    *,
    fast: bool,
    precision: str,
    batch_size: int,
    device: str,
    console: Console,
    merge: int = 0,
    images: int = 0,
) -> Callable[[Tensor], Tensor] | None:
    """The optimised model, or None where the plain one will do; says what was chosen.

    Asked for by `--fast`, `--merge`, `--precision int8` or `fp8`. Many `images` on a CPU get what needs no asking:
    weights laid out for it, which takes no time to find and changes logits by rounding alone, and batches side by side.
    """
    if merge:
        from vitreous.predict.embed import embedding
        from vitreous.speed.token_merging import merging

        compute = merging(merge, features=compute is embedding)
        console.print(f"merging {merge} tokens in each block: answers differ from the whole model's", style="dim")
    if not fast and precision not in ("int8", "fp8"):
        if merge:
            return _plain(model, compute, precision, device)
        return _many(model, compute, precision, batch_size, device) if images >= MANY else None
    from vitreous.runtime.device import pick_device
    from vitreous.runtime.files import cache_folder
    from vitreous.speed.optimize import optimize

    if precision == "fp16":
        raise ValueError("--fast knows fp32, bf16, int8 and fp8, not fp16: take bf16")
    with console.status("finding the fastest way (the first time on a machine takes a minute)"):
        chosen = optimize(
            model, precision, batch=batch_size, device=pick_device(device), compute=compute, cache=cache_folder()
        )
    message = ", ".join(f"{way} {1000 * seconds:.1f} ms" for way, seconds in chosen.tried.items())
    for line in [
        *chosen.remarks,
        f"fast: {chosen.way}" + (f" ({message} a batch of {chosen.batch})" if message else ""),
    ]:
        console.print(line, style="dim", markup=False)
    return chosen


def _many(
    model: Any, compute: Callable[[Any, Tensor], Tensor], precision: str, batch_size: int, device: str
) -> Callable[[Tensor], Tensor] | None:
    """What has nothing to compile or try on a CPU: weights laid out where the network allows it, else as they are."""
    from vitreous.models.vit import ViT
    from vitreous.predict.pipeline import Laned
    from vitreous.runtime.device import max_lanes, pick_device
    from vitreous.speed.optimize import optimize

    place = pick_device(device)
    if place.type != "cpu":
        return None
    if isinstance(model, ViT) and precision != "fp16":
        chosen = optimize(model, precision, batch=batch_size, device=place, compute=compute, ways=("packed",))
        if chosen.way == "packed":
            return chosen
    return Laned(_plain(model, compute, precision, device), max_lanes())


def _plain(
    model: Any, compute: Callable[[Any, Tensor], Tensor], precision: str, device: str
) -> Callable[[Tensor], Tensor]:
    """The network as it is."""
    from functools import partial

    from vitreous.predict.classify import placed, started

    return partial(started, placed(model, device, precision), function=compute)
