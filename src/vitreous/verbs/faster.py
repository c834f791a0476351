"""`--fast`: what a verb computes with instead of the plain model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from torch import Tensor


def faster(
    model: Any,
    compute: Callable[[Any, Tensor], Tensor],
    *,
    fast: bool,
    precision: str,
    batch_size: int,
    device: str,
    console: Console,
) -> Callable[[Tensor], Tensor] | None:
    """The optimised model, or None where neither `--fast` nor `--precision int8` asks for it; says what was chosen."""
    if not fast and precision != "int8":
        return None
    from vitreous.device import pick_device
    from vitreous.speed.optimize import optimize
    from vitreous.weights.download import cache_folder

    if precision == "fp16":
        raise ValueError("--fast knows fp32, bf16 and int8")
    with console.status("finding the fastest way (the first time on a machine takes a minute)"):
        chosen = optimize(
            model, precision, batch=batch_size, device=pick_device(device), compute=compute, cache=cache_folder()
        )
    told = ", ".join(f"{way} {1000 * seconds:.1f} ms" for way, seconds in chosen.tried.items())
    for line in [*chosen.remarks, f"fast: {chosen.way}" + (f" ({told} a batch of {chosen.batch})" if told else "")]:
        console.print(line, style="dim", markup=False)
    return chosen
