"""`CONTENDERS`: each library to benchmark (timm, torchvision, transformers, onnxruntime …), modes, the model copied.

All have the same random weights, under their own library's names, so that all must give the same logits and none needs
a download. A library that is not installed, or does not support the model, is left out with a reason.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitreous.data.preprocess import default_preprocess
from vitreous.models.last_block import Compute, logits_only
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.runtime.device import pick_dtype
from vitreous.speed.optimize import PRECISIONS, optimize
from vitreous.speed.training_forward import training_logits
from vitreous.weights.card import Card
from vitreous.weights.convert import convert
from vitreous.weights.formats.timm import to_timm
from vitreous.weights.formats.torchvision import to_torchvision


class LeftOut(Exception):
    """The reason why a contender of a benchmark cannot be timed here."""


@dataclass(frozen=True)
class Setting:
    """The setting that all contenders of a benchmark run in: network, batch size, device and precision."""

    config: ViTConfig
    batch: int
    device: torch.device
    precision: str = "fp32"
    train: bool = False
    """Time a training step instead: weights stay fp32, other precisions use autocast."""

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the contenders' matrix products."""
        return pick_dtype(self.precision)


@dataclass
class Material:
    """The models that contenders are built from; modes of a library share one module, so that it is in memory once."""

    setting: Setting
    folder: Path
    """Folder for files from which some libraries read a model."""
    seed: int = 0
    modules: dict[str, nn.Module] = field(default_factory=dict)

    @cached_property
    def reference(self) -> ViT:
        """Our model in fp32 on the CPU, whose weights all contenders get."""
        return random_model(self.setting.config, self.seed)

    def module(self, library: str) -> nn.Module:
        """Build a contender's model of a library, with the reference's weights, on the device and in the precision."""
        if library not in self.modules:
            module = BUILDERS[library](self)
            setting = self.setting
            module = module.to(setting.device, torch.float32 if setting.train else setting.dtype)
            self.modules[library] = module.train(setting.train)
        return self.modules[library]

    @cached_property
    def onnx(self) -> Path:
        """The contenders' reference as an ONNX file for this batch size."""
        needs("onnx", "onnxscript")
        path = self.folder / "model.onnx"
        x = torch.zeros(self.setting.batch, self.setting.config.channels, *self.setting.config.size)
        torch.onnx.export(self.reference, (x,), path, dynamo=True, verbose=False)
        return path


@torch.no_grad()
def random_model(config: ViTConfig, seed: int = 0) -> ViT:
    """Make the model that all contenders copy, noise in every parameter: heads and biases of zero would hide mistakes.

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
        else:  # by fan-in, so that outputs are about as large as inputs
            spread = 0.5 if tensor.dim() == 3 else tensor[0].numel() ** -0.5
            tensor.normal_(0.0, spread, generator=generator)
    return model.eval()


def needs(*libraries: str) -> None:
    """Leave a benchmark's contender out if its library is not installed."""
    for library in libraries:
        if find_spec(library) is None:
            raise LeftOut(f"{library} is not installed: pip install {library}")


def timm_module(material: Material) -> nn.Module:
    """Build the contender that is timm's model with our weights."""
    needs("timm")
    import timm

    from vitreous.weights.formats.timm import architecture

    written = to_timm(material.reference)
    name, arguments = architecture(material.setting.config)
    module: nn.Module = timm.create_model(name, num_classes=material.setting.config.classes, **arguments)
    module.load_state_dict(written.tensors)
    return module


def torchvision_module(material: Material) -> nn.Module:
    """Build the contender that is torchvision's model with our weights; its images and patches are square."""
    from torchvision.models.vision_transformer import VisionTransformer

    config = material.setting.config
    if config.size[0] != config.size[1] or config.patch[0] != config.patch[1]:
        raise LeftOut("torchvision does not support this model: its images and patches are square")
    tensors = to_torchvision(material.reference).tensors
    module: nn.Module = VisionTransformer(
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
    """Build the contender that is transformers' model with our weights, and torch's attention."""
    needs("transformers")
    import transformers

    folder = material.folder / "transformers"
    convert(material.reference, folder, "huggingface")
    quiet = transformers.utils.logging
    bars = quiet.is_progress_bar_enabled()
    quiet.disable_progress_bar()
    try:
        module: nn.Module = transformers.AutoModelForImageClassification.from_pretrained(
            folder, attn_implementation="sdpa", dtype=torch.float32
        )
        return module
    finally:
        if bars:
            quiet.enable_progress_bar()


BUILDERS: dict[str, Callable[[Material], nn.Module]] = {
    "vitreous": lambda material: deepcopy(material.reference),
    "timm": timm_module,
    "torchvision": torchvision_module,
    "transformers": transformers_module,
}
"""Libraries whose models are torch modules."""


def logits_only_model(material: Material) -> Compute:
    """Build the contender that is our model without the work that cannot reach the logits."""
    model = material.module("vitreous")
    return lambda x: logits_only(model, x)


def plain(library: str) -> Callable[[Material], Compute]:
    """Build the contender that runs a library's own forward pass, uncompiled."""
    return lambda material: material.module(library)


def transformers_logits(material: Material) -> Compute:
    """Build the contender that runs transformers' forward pass, whose result has the logits as a field."""
    model = material.module("transformers")
    return lambda x: model(x).logits


def compiled(build: Callable[[Material], Compute], mode: str = "default") -> Callable[[Material], Compute]:
    """Build the contender that runs a library's model compiled by `torch.compile`."""
    return lambda material: torch.compile(build(material), dynamic=False, mode=mode)


def graph(build: Callable[[Material], Compute]) -> Callable[[Material], Compute]:
    """Build the contender that replays a compiled model as a CUDA graph: for small batches, where launches cost."""
    return on_cuda(compiled(build, "reduce-overhead"))


def on_cuda(build: Callable[[Material], Compute]) -> Callable[[Material], Compute]:
    """Leave a benchmark's contender out without CUDA."""

    def start(material: Material) -> Compute:
        if material.setting.device.type != "cuda":
            raise LeftOut("graphs need a CUDA device")
        return build(material)

    return start


def onnxruntime_session(material: Material) -> Compute:
    """Build the contender that runs our weights as an ONNX graph in onnxruntime."""
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
    # its threads would spin on during the next contender's turn
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(material.onnx, options, providers=[provider])
    (name,) = (given.name for given in session.get_inputs())
    # on a GPU this includes copying the images there and the logits back
    return lambda x: torch.from_numpy(session.run(None, {name: x.cpu().numpy()})[0])


def openvino_model(material: Material) -> Compute:
    """Build the contender that runs our weights as an ONNX graph in OpenVINO."""
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


def optimized(precision: str | None = None) -> Callable[[Material], Compute]:
    """Build the contender that is our model as `--fast` runs it, in the setting's precision or another."""

    def start(material: Material) -> Compute:
        setting, model = material.setting, material.reference
        wanted = precision or setting.precision
        if wanted not in PRECISIONS:
            raise LeftOut(f"optimize supports {', '.join(PRECISIONS)}, not {wanted}")
        model.card = Card("random", default_preprocess(setting.config))
        try:
            fast = optimize(model, wanted, batch_size=setting.batch, device=setting.device, pixels=False)
        except (ImportError, ValueError) as error:
            raise LeftOut(str(error)) from error
        # as for the others: images are normalised and on the device, and logits stay there
        return torch.no_grad()(lambda x: fast.compute(fast.prepare(x)))

    return start


def learning(residual: torch.dtype | None) -> Callable[[Material], Compute]:
    """Build the contender that is our model with its fused forward pass, compiled.

    It is what `train --fused` runs; `residual` is the precision of the tokens between blocks.
    """

    def start(material: Material) -> Compute:
        model = material.module("vitreous")
        return torch.compile(lambda x: training_logits(model, x, residual), dynamic=False)

    return start


@dataclass(frozen=True)
class Contender:
    """What a benchmark times: a library in one mode."""

    library: str
    build: Callable[[Material], Compute]
    mode: str = "eager"
    """eager, compiled or graph; a runtime with a format of its own counts as eager."""
    trains: bool = True
    infers: bool = True
    precision: str | None = None
    """Another precision than the setting's; such contenders are timed only on request."""
    captured: bool = False
    """On CUDA the training step, optimiser included, is recorded as a graph and replayed (`training_step.recorded`)."""


CONTENDERS: dict[str, Contender] = {
    "vitreous": Contender("vitreous", logits_only_model),
    "vitreous, whole network": Contender("vitreous", plain("vitreous")),
    "vitreous, compiled": Contender("vitreous", compiled(logits_only_model), "compiled"),
    "vitreous, graph": Contender("vitreous", graph(logits_only_model), "graph", trains=False),
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


def select_contenders(
    libraries: tuple[str, ...], modes: tuple[str, ...], train: bool = False, also: tuple[str, ...] = ()
) -> dict[str, Contender]:
    """Select our contenders and those of `libraries`, in these modes; `also` adds ours in other precisions.

    >>> list(select_contenders(("timm",), ("eager",)))
    ['vitreous', 'vitreous, whole network', 'timm']
    """
    for given, known, kind in ((libraries, LIBRARIES, "library"), (modes, MODES, "mode")):
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"no {kind} is called {unknown[0]!r}: known are {', '.join(known)}")
    return {
        name: contender
        for name, contender in CONTENDERS.items()
        if contender.library in ("vitreous", *libraries)
        and (contender.mode in modes if contender.precision is None else contender.precision in also)
        and (contender.trains if train else contender.infers)
    }
