"""`CONTENDERS`: who is timed, each as a call from images `[b 3 s s]` to logits `[b classes]`.

All hold the same random weights, under their own library's names, so that all owe the same logits and none needs a
download. A library that is missing here, or cannot hold the model, is left out with a reason.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models.last_block import logits_only
from vitreous.models.vit import ViT, ViTConfig
from vitreous.runtime.device import pick_dtype
from vitreous.speed.optimize import PRECISIONS, optimize
from vitreous.speed.training_forward import logits_to_learn
from vitreous.weights.card import Card, usual_preprocess
from vitreous.weights.convert import convert
from vitreous.weights.formats.timm import to_timm
from vitreous.weights.formats.torchvision import to_torchvision

Run = Callable[[Tensor], Tensor]
"""Images `[b 3 s s]` → logits `[b classes]`."""


class LeftOut(Exception):
    """Why a contender does not take part here."""


@dataclass(frozen=True)
class Setting:
    """What all contenders do: which network, how many images at once, where, in which number format."""

    config: ViTConfig
    batch: int
    device: torch.device
    precision: str = "fp32"
    train: bool = False
    """Time a training step instead: weights stay fp32, and a narrower precision is autocast's."""

    @property
    def dtype(self) -> torch.dtype:
        """What the matrix products run in."""
        return pick_dtype(self.precision)


@dataclass
class Material:
    """What contenders are made from; the modes of a library share one module, so that memory holds it once."""

    setting: Setting
    folder: Path
    """For the files that some libraries read a model from."""
    seed: int = 0
    modules: dict[str, nn.Module] = field(default_factory=dict)

    @cached_property
    def reference(self) -> ViT:
        """Our own model in fp32 on the CPU, whose weights all get."""
        return random_model(self.setting.config, self.seed)

    def module(self, library: str) -> nn.Module:
        """A library's model with the reference's weights, placed and cast."""
        if library not in self.modules:
            module = BUILDERS[library](self)
            setting = self.setting
            module = module.to(setting.device, torch.float32 if setting.train else setting.dtype)
            self.modules[library] = module.train(setting.train)
        return self.modules[library]

    @cached_property
    def onnx(self) -> Path:
        """The reference as an ONNX file for just this batch."""
        needs("onnx", "onnxscript")
        path = self.folder / "model.onnx"
        x = torch.zeros(self.setting.batch, self.setting.config.channels, *self.setting.config.size)
        torch.onnx.export(self.reference, (x,), path, dynamo=True, verbose=False)
        return path


@torch.no_grad()
def random_model(config: ViTConfig, seed: int = 0) -> ViT:
    """A ViT none of whose parts is silent: fresh heads are zero and fresh biases too, which would hide mistakes.

    >>> from vitreous.models.variants import variant
    >>> random_model(variant("vit_femto_patch4_32"))(torch.ones(1, 3, 32, 32)).abs().max() > 0.1
    tensor(True)
    """
    model = ViT(config)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            tensor.normal_(1.0, 0.1, generator=generator)
        elif tensor.dim() < 2:
            tensor.normal_(0.0, 0.1, generator=generator)
        else:  # by fan-in, so that each layer's output is about as large as its input
            spread = 0.5 if tensor.dim() == 3 else tensor[0].numel() ** -0.5
            tensor.normal_(0.0, spread, generator=generator)
    return model.eval()


def needs(*libraries: str) -> None:
    """Leave the contender out where a library is not installed."""
    for library in libraries:
        if find_spec(library) is None:
            raise LeftOut(f"{library} is not installed: pip install {library}")


def timm_module(material: Material) -> nn.Module:
    """Our weights in timm's model."""
    needs("timm")
    import timm

    from vitreous.weights.formats.timm import architecture

    written = to_timm(material.reference)
    name, arguments = architecture(material.setting.config)
    module = timm.create_model(name, num_classes=material.setting.config.classes, **arguments)
    module.load_state_dict(written.tensors)
    return module


def torchvision_module(material: Material) -> nn.Module:
    """Our weights in torchvision's model; it has square images and patches alone."""
    from torchvision.models.vision_transformer import VisionTransformer

    config = material.setting.config
    if config.size[0] != config.size[1] or config.patch[0] != config.patch[1]:
        raise LeftOut("torchvision cannot hold this model: its images and patches are square")
    tensors = to_torchvision(material.reference).tensors
    module = VisionTransformer(
        image_size=config.size[0],
        patch_size=config.patch[0],
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp_width,
        num_classes=config.classes,
    )
    module.load_state_dict(tensors)
    return module


def transformers_module(material: Material) -> nn.Module:
    """Our weights in transformers' model, with torch's own attention."""
    needs("transformers")
    import transformers

    folder = material.folder / "transformers"
    convert(material.reference, folder, "huggingface")
    quiet = transformers.utils.logging
    bars = quiet.is_progress_bar_enabled()
    quiet.disable_progress_bar()
    try:
        return transformers.AutoModelForImageClassification.from_pretrained(
            folder, attn_implementation="sdpa", dtype=torch.float32
        )
    finally:
        if bars:
            quiet.enable_progress_bar()


BUILDERS: dict[str, Callable[[Material], nn.Module]] = {
    "vitreous": lambda material: _copy(material.reference),
    "timm": timm_module,
    "torchvision": torchvision_module,
    "transformers": transformers_module,
}
"""Libraries whose models are torch modules."""


def shortcut(material: Material) -> Run:
    """Ours, without what cannot reach the logits."""
    model = material.module("vitreous")
    return lambda x: logits_only(model, x)


def plain(library: str) -> Callable[[Material], Run]:
    """The library's own forward pass."""
    return lambda material: material.module(library)


def transformers_logits(material: Material) -> Run:
    """transformers' forward pass, whose answer has the logits as one of its fields."""
    model = material.module("transformers")
    return lambda x: model(x).logits


def compiled(build: Callable[[Material], Run], mode: str = "default") -> Callable[[Material], Run]:
    """The same by `torch.compile`."""
    return lambda material: torch.compile(build(material), dynamic=False, mode=mode)


def graph(build: Callable[[Material], Run]) -> Callable[[Material], Run]:
    """The same compiled and replayed as a CUDA graph: for small batches, where starting kernels takes the time."""

    return on_cuda(compiled(build, "reduce-overhead"))


def on_cuda(build: Callable[[Material], Run]) -> Callable[[Material], Run]:
    """The same where there is CUDA, and left out elsewhere."""

    def start(material: Material) -> Run:
        if material.setting.device.type != "cuda":
            raise LeftOut("graphs need a CUDA device")
        return build(material)

    return start


def onnxruntime_session(material: Material) -> Run:
    """Our weights as an ONNX graph in onnxruntime."""
    needs("onnxruntime")
    import onnxruntime

    setting = material.setting
    if setting.precision != "fp32":
        raise LeftOut(f"the exported model is fp32, not {setting.precision}")
    provider = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}.get(setting.device.type, "none")
    if provider not in onnxruntime.get_available_providers():
        raise LeftOut(f"this onnxruntime does not run on {setting.device.type}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    # its threads would go on spinning into the next contender's turn
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(material.onnx, options, providers=[provider])
    (name,) = (given.name for given in session.get_inputs())
    # on a GPU the images are copied there and the logits back: what a caller of `run` pays
    return lambda x: torch.from_numpy(session.run(None, {name: x.cpu().numpy()})[0])


def openvino_model(material: Material) -> Run:
    """The same graph in OpenVINO."""
    needs("openvino")
    import openvino

    setting = material.setting
    if setting.device.type != "cpu":
        raise LeftOut(f"openvino does not run on {setting.device.type}")
    types = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
    core = openvino.Core()
    options: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",  # all cores for one batch, as for the others
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": types[setting.precision],
    }
    model = core.compile_model(core.read_model(material.onnx), "CPU", options)
    return lambda x: torch.from_numpy(model(x.float().numpy())[0])


def optimized(precision: str | None = None) -> Callable[[Material], Run]:
    """Ours as `--fast` runs it, whichever way proves fastest here; in the setting's number format or a narrower one."""

    def start(material: Material) -> Run:
        setting, model = material.setting, material.reference
        wanted = precision or setting.precision
        if wanted not in PRECISIONS:
            raise LeftOut(f"optimize knows {', '.join(PRECISIONS)}, not {wanted}")
        model.card = Card("random", usual_preprocess(setting.config))
        try:
            fast = optimize(model, wanted, batch=setting.batch, device=setting.device, pixels=False)
        except (ImportError, ValueError) as error:
            raise LeftOut(str(error)) from error
        # as the others: what comes in is normalised and on the device, and what goes out stays there
        return torch.no_grad()(lambda x: fast.run(fast.prepare(x)))

    return start


def learning(residual: torch.dtype | None) -> Callable[[Material], Run]:
    """Ours as `train --fused` runs it on a GPU: fewer trips to memory in the backward pass, compiled."""

    def start(material: Material) -> Run:
        model = material.module("vitreous")
        return torch.compile(lambda x: logits_to_learn(model, x, residual), dynamic=False)

    return start


@dataclass(frozen=True)
class Contender:
    """One way to run the network."""

    library: str
    build: Callable[[Material], Run]
    mode: str = "eager"
    """eager, compiled or graph; a runtime with a format of its own counts as eager."""
    trains: bool = True
    infers: bool = True
    precision: str | None = None
    """A narrower number format than the setting's; such contenders take part when they are asked for."""
    captured: bool = False
    """On CUDA its training step is recorded whole, optimiser included, and replayed (`step.recorded`)."""


CONTENDERS: dict[str, Contender] = {
    "vitreous": Contender("vitreous", shortcut),
    "vitreous, whole network": Contender("vitreous", plain("vitreous")),
    "vitreous, compiled": Contender("vitreous", compiled(shortcut), "compiled"),
    "vitreous, graph": Contender("vitreous", graph(shortcut), "graph", trains=False),
    "vitreous, optimized": Contender("vitreous", optimized(), "compiled", trains=False),
    **{
        f"vitreous, optimized {name}": Contender("vitreous", optimized(name), "compiled", trains=False, precision=name)
        for name in ("bf16", "int8", "fp8")
    },
    "vitreous, fused": Contender("vitreous", learning(None), "compiled", infers=False, captured=True),
    "vitreous, fused, bf16 residual": Contender(
        "vitreous", learning(torch.bfloat16), "compiled", infers=False, captured=True
    ),
    "timm": Contender("timm", plain("timm")),
    "timm, compiled": Contender("timm", compiled(plain("timm")), "compiled"),
    "timm, graph": Contender("timm", graph(plain("timm")), "graph", trains=False),
    "timm, step as a graph": Contender("timm", on_cuda(compiled(plain("timm"))), "graph", infers=False, captured=True),
    "torchvision": Contender("torchvision", plain("torchvision")),
    "torchvision, compiled": Contender("torchvision", compiled(plain("torchvision")), "compiled"),
    "torchvision, graph": Contender("torchvision", graph(plain("torchvision")), "graph", trains=False),
    "transformers": Contender("transformers", transformers_logits),
    "transformers, compiled": Contender("transformers", compiled(transformers_logits), "compiled"),
    "transformers, graph": Contender("transformers", graph(transformers_logits), "graph", trains=False),
    "onnxruntime": Contender("onnxruntime", onnxruntime_session, trains=False),
    "openvino": Contender("openvino", openvino_model, trains=False),
}

LIBRARIES = tuple(dict.fromkeys(contender.library for contender in CONTENDERS.values()))
MODES = ("eager", "compiled", "graph")


def chosen(
    libraries: tuple[str, ...], modes: tuple[str, ...], train: bool = False, also: tuple[str, ...] = ()
) -> dict[str, Contender]:
    """Ours and those of `libraries`, in these modes; `also` are narrower number formats that ours run in beside.

    >>> list(chosen(("timm",), ("eager",)))
    ['vitreous', 'vitreous, whole network', 'timm']
    """
    for given, known, kind in ((libraries, LIBRARIES, "library"), (modes, MODES, "mode")):
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"no {kind} here is called {unknown[0]!r}: there are {', '.join(known)}")
    return {
        name: contender
        for name, contender in CONTENDERS.items()
        if contender.library in ("vitreous", *libraries)
        and (contender.mode in modes if contender.precision is None else contender.precision in also)
        and (contender.trains if train else contender.infers)
    }


def _copy(model: ViT) -> ViT:
    copy = ViT(model.config)
    copy.load_state_dict(model.state_dict())
    return copy
