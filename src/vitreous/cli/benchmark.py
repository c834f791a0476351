"""`vitreous benchmark`: time ViTs beside other libraries and the hardware's limit."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from vitreous.cli.console import messages, print_json
from vitreous.cli.options import Device, Number, OutputFolder, Switch, optional
from vitreous.runtime.files import check_writable_folder
from vitreous.runtime.progress import Estimate

Names = Annotated[tuple[str, ...], optional("NAME …")]


def benchmark(
    models: Names = (),
    batch_size: Number = None,
    against: Annotated[str, tyro.conf.arg(metavar="LIBRARY,…")] = "timm,torchvision,transformers,onnxruntime,openvino",
    modes: Annotated[tuple[Literal["eager", "compiled", "graph"], ...], optional("{eager,compiled,graph} …")] = (),
    precision: Annotated[Literal["fp32", "bf16", "fp16"] | None, optional("{fp32,bf16,fp16}")] = None,
    also: Annotated[tuple[Literal["bf16", "int8", "fp8"], ...], optional("{bf16,int8,fp8} …")] = (),
    train: Switch = False,
    seconds: float = 20.0,
    device: Device = "auto",
    output: OutputFolder = None,
    json: Switch = False,
) -> None:
    """Time ViTs beside other libraries and the hardware's limit, in one process and in turns.

    As in `vitreous benchmark --models vit_base_patch16_224 --modes eager compiled -o speed`. Every library runs the
    same random weights, and its logits are compared with ours before it is timed. The limit is the fastest matrix
    product of this device in the same precision; shares of it count the whole network's work, skipped work included.

    Args:
        models: Variants (`vitreous models`); by default vit_tiny_patch16_224, on a GPU vit_base_patch16_224.
        batch_size: Images in a batch; by default 8, on a GPU 256.
        against: Libraries to compare with, with commas; '' for none. Those not installed are left out with a reason.
        modes: eager, compiled (torch.compile) and graph (CUDA graphs); by default eager, on a GPU eager and compiled.
            Compiling takes a minute or so for each library on a CPU.
        precision: fp32, bf16 or fp16; by default fp32, on a GPU bf16.
        also: Also time ours in bf16, int8 or fp8 (on GPUs that have it).
        train: Time training steps (forward, backward, AdamW) instead; bf16 and fp16 use autocast.
        seconds: Time for the rounds of each model; building and compiling take extra time.
        device: auto, cpu, cuda, cuda:N or mps.
        output: Write benchmark.json, benchmark.png and benchmark.svg to this folder.
        json: Print the content of benchmark.json.
    """
    from vitreous.api.benchmark import benchmark as run

    if output is not None:
        check_writable_folder(output, "-o")
    console = messages()
    with Estimate(console, "benchmark") as estimate:
        found = run(
            models,
            batch_size=batch_size,
            against=tuple(name.strip() for name in against.split(",") if name.strip()),
            modes=modes,
            precision=precision,
            also=also,
            train=train,
            seconds=seconds,
            device=device,
            note=estimate.say,
            on_result=lambda result: None if json else print(result, flush=True),
        )
    for warning in (line for result in found.results for line in result.warnings):
        console.print(f"vitreous: {warning}", style="yellow", markup=False)
    if output is not None:
        for path in found.save(output):
            console.print(f"wrote {path}", markup=False)
    if json:
        print_json(found.to_dict())
