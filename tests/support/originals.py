"""What the original libraries make of checkpoint files: sound checkpoints of every format, and their own readers.

`BASES` are sound checkpoints, every tensor filled with noise. Each writes its files into a folder, and its `original`
reads them back with the library that defines the format, strictly: weights that the library would draw at random are an
error here. A bare file may be right for several models, such as one with a head and one without: any may read it.
"""

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torchvision
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models.eva import checkpoint_filter_fn as from_dinov3
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor, nn

from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.weights.card import Card
from vitreous.weights.save import save

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TOLERANCE = 5e-5  # of the standard deviation of the outputs; rounding alone stays under 1e-5

# Layers that write into the residual stream, in the names of all libraries: their numbers are small.
RESIDUAL = re.compile(
    r"embed|cls|reg_token|dist_token|register|class_token|norm_pre|pre_layrnorm|ln_pre|conv_proj|conv1\.|"
    r"attn\.proj|out_proj|o_proj|\.output\.dense|mlp\.fc2|mlp\.w3|weights_out|down_proj|c_proj|mlp\.3\.|out/|Dense_1"
)


@torch.no_grad()
def fill_with_noise(tensors: dict[str, Tensor], seed: int = 0) -> None:
    """Fill every tensor in place: activations near 1 inside a branch, tokens near 0.01 in the residual stream.

    Only with tokens near zero does the epsilon of a layer norm show in the output.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        small = 0.01 if RESIDUAL.search(name) else 1.0
        noise = torch.empty(tensor.shape).normal_(generator=generator)
        if tensor.dim() >= 2 and "token" not in name and "pos" not in name:
            noise *= 1.5 * small * tensor[0].numel() ** -0.5  # 1.5: where the kinds of GELU differ
        elif name.endswith("bias") or tensor.dim() >= 2:
            noise *= 0.3 * small
        else:  # the scale of a norm or of a branch
            noise = (1 + 0.2 * noise) * (0.02 if re.search("norm_pre|pre_layrnorm|ln_pre", name) else 1.0)
        tensor.copy_(noise)


def difference(ours: Tensor, theirs: Tensor) -> str:
    """Return how two outputs differ; nothing if they are the same but for rounding."""
    if ours.shape != theirs.shape:
        return f"output {list(ours.shape)} instead of {list(theirs.shape)}"
    largest = (ours - theirs).abs().max().item() / max(theirs.std().item(), 1e-12)
    return "" if largest < TOLERANCE else f"outputs differ by {largest:.1g} of their deviation"


def photo() -> Image.Image:
    """Return an image of noise that is smooth enough to be resized."""
    pixels = torch.randint(0, 256, (30, 42, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    return Image.fromarray(pixels.numpy()).resize((500, 380), Image.Resampling.BICUBIC)


@dataclass(frozen=True)
class Original:
    """A model in its own library: the size of its images, its outputs, and its preprocessing where files state it."""

    size: tuple[int, int]
    outputs: Callable[[Tensor], Any]
    preprocess: Callable[[Image.Image], Tensor] | None = None
    answers: tuple[str, tuple[float, ...] | None] | None = None  # task and thresholds, where files state them


@dataclass(frozen=True)
class Base:
    """A sound checkpoint: how its files are written, and how its own library reads them."""

    write: Callable[[Path], None]
    original: Callable[[Path], Original]
    weights: str = "model.safetensors"  # the file that `load` is given, if there is no config
    config: tuple[str, ...] = ("config.json",)
    assume: dict[str, Any] = field(default_factory=dict)  # what no file of this format states
    large: bool = field(default=False, kw_only=True)  # takes about a second to load


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors, npz or torch file."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path)


def write_weights(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a file that `read_weights` reads."""
    if path.suffix == ".npz":
        np.savez(path, **{name: tensor.float().numpy() for name, tensor in tensors.items()})
    elif path.suffix == ".safetensors":
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path)
    else:
        torch.save(tensors, path)


# --- timm -----------------------------------------------------------------------------------------------------

SMALL_TIMM = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4}


def write_timm(architecture: str, arguments: dict[str, Any], classes: int, folder: Path) -> None:
    """Write a Hub folder as timm does."""
    from timm.models._hub import save_config_for_hf

    model = timm.create_model(architecture, num_classes=classes, **arguments)
    fill_with_noise(model.state_dict())
    size = arguments.get("img_size", model.pretrained_cfg["input_size"][1])
    model.pretrained_cfg = model.pretrained_cfg | {"input_size": (3, size, size), "num_classes": classes}
    save_config_for_hf(model, folder / "config.json", model_args=arguments)
    write_weights(model.state_dict(), folder / "model.safetensors")


def read_timm(folder: Path) -> Original:
    """Read a Hub folder as timm does; a head that timm would draw anew is an error."""
    from timm.data import create_transform, resolve_data_config

    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(timm.create_model(f"local-dir:{folder}", pretrained=True).eval())
    first, second = (model.state_dict() for model in models)
    if drawn := [name for name in first if not torch.equal(first[name], second[name])]:
        raise RuntimeError(f"timm draws {drawn[0]} at random")
    settings = resolve_data_config(pretrained_cfg=models[0].pretrained_cfg)
    if tuple(settings["input_size"][1:]) != (size := tuple(models[0].patch_embed.img_size)):
        settings["input_size"] = (settings["input_size"][0], *size)  # model_args have the last word
    return Original(size, models[0], create_transform(**settings))


# --- transformers ---------------------------------------------------------------------------------------------

SMALL_TRANSFORMERS = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
SMALL_CLASSIFIER = SMALL_TRANSFORMERS | {"intermediate_size": 96, "num_labels": 7}


def write_transformers(kind: str, suffix: str, extra: dict[str, Any], processor: str, folder: Path) -> None:
    """Write a folder as `save_pretrained` does, with a preprocessor beside it."""
    hidden = {"mlp_ratio": 2} if "Dinov2" in kind else {"intermediate_size": 96}
    fields: dict[str, Any] = SMALL_TRANSFORMERS | hidden | extra
    config = getattr(transformers, f"{kind}Config")(**{"vision_config": fields} if kind == "Siglip" else fields)
    if "Classification" in suffix:
        config.num_labels = 7
    model = getattr(transformers, kind + suffix)(config)
    fill_with_noise(model.state_dict())
    model.save_pretrained(folder)
    if processor:
        squash = processor in ("ViT", "Siglip", "Beit", "DPT")
        size = {"height": 32, "width": 32} if squash else {"shortest_edge": 40}
        crop = {} if squash else {"crop_size": {"height": 32, "width": 32}}
        getattr(transformers, f"{processor}ImageProcessor")(size=size, **crop).save_pretrained(folder)


def read_transformers(kind: str, folder: Path) -> Original:
    """Read a folder as transformers does, with the class `kind` if its config names none; random weights fail."""
    stated = json.loads((folder / "config.json").read_text()).get("architectures") or [kind]
    decoder = stated[0].startswith("DPTFor")  # of a ViT, which is all that is loaded here
    owner = transformers.DPTModel if decoder else getattr(transformers, stated[0])
    options = {"add_pooling_layer": False} if decoder else {}
    model, loading = owner.from_pretrained(folder, output_loading_info=True, **options)
    missing = [name for name in loading["missing_keys"] if "mask_token" not in name]  # which inference does not use
    if drawn := [*missing, *loading["mismatched_keys"]]:
        raise RuntimeError(f"transformers draws {drawn[0]} at random")
    model = model.eval()
    sides = getattr(model.config, "vision_config", model.config).image_size
    size = (sides, sides) if isinstance(sides, int) else tuple(sides)
    preprocess = None
    if (folder / "preprocessor_config.json").exists():
        processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        preprocess = lambda image: processor(image, return_tensors="pt")["pixel_values"][0]  # noqa: E731
        size = tuple(preprocess(photo()).shape[1:])
    return Original(size, partial(outputs_of_transformers, model), preprocess)


def flat_patches(image: Tensor, patch: int) -> dict[str, Tensor]:
    """Cut images into patches as transformers' Siglip2ImageProcessor does: channels last, with a mask and the grid."""
    cut = image.unfold(2, patch, patch).unfold(3, patch, patch)  # [b c rows columns p p]
    patches = cut.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
    grid = torch.tensor([cut.shape[2:4]] * len(image))
    return {"pixel_values": patches, "pixel_attention_mask": torch.ones(patches.shape[:2]), "spatial_shapes": grid}


def outputs_of_transformers(model: Any, image: Tensor) -> Tensor:
    """Return logits, embedding, pooled output or the tokens themselves, whichever the class is for."""
    resize = {}
    if "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        resize = {"interpolate_pos_encoding": True}
    if type(model).__name__.startswith("Siglip2"):
        out = getattr(model, "get_image_features", model)(**flat_patches(image, 8))
    elif hasattr(model, "get_image_features"):
        out = model.get_image_features(pixel_values=image)
    elif "MAE" in type(model).__name__:
        encoder = getattr(model, "vit", model)
        encoder.config.mask_ratio = 0.0
        patches = torch.arange((image.shape[-1] // encoder.config.patch_size) ** 2).float().expand(len(image), -1)
        out = encoder(image, noise=patches)
    elif hasattr(model, "dpt"):
        out = model.dpt(image)  # the ViT under the decoder
    elif "MaskedImageModeling" in type(model).__name__:
        out = model.base_model(image)  # the decoder is for pre-training alone
        if hasattr(model, "layernorm"):  # BEiT's own norm before it
            return model.layernorm(out.last_hidden_state)
    else:
        out = model(image, **resize)
    if isinstance(out, Tensor):
        return out
    if maps := getattr(out, "feature_maps", None):
        return maps[-1].flatten(2).transpose(1, 2)  # [b n d]
    for name in ("logits", "image_embeds", "pooler_output", "last_hidden_state"):
        if isinstance(getattr(out, name, None), Tensor):
            return getattr(out, name)
    raise TypeError(f"{type(model).__name__} returns {list(out.keys())}")


# --- bare files -----------------------------------------------------------------------------------------------

Build = Callable[[], nn.Module]


def share_blocks(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give all blocks the numbers of the first two: torch.save writes shared numbers once."""
    first = {name: re.sub(r"(?<=[._])\d+(?=\.)", lambda m: str(int(m[0]) % 2), name, count=1) for name in tensors}
    return {
        name: tensors[first[name]] if first[name] in tensors and tensors[first[name]].shape == tensor.shape else tensor
        for name, tensor in tensors.items()
    }


def build_empty(build: Build) -> nn.Module:
    """Build a model without drawing its numbers, unless it computes some that are not stored."""
    with torch.device("meta"):
        model = build()
    if {name for name, _ in model.named_buffers()} - set(model.state_dict()):
        return build().eval().requires_grad_(False)
    return model.to_empty(device="cpu").eval()


def read_strictly(builds: tuple[Build, ...], rename: Any, size: int, weights: str, folder: Path) -> Original:
    """Load a bare file into the first of the models that it fits."""
    errors = []
    for build in builds:
        model = build_empty(build)
        tensors = read_weights(folder / weights)
        try:
            model.load_state_dict(rename(tensors, model) if rename else tensors)
        except (RuntimeError, KeyError) as error:
            errors.append(str(error))
        else:
            return Original((size, size), model)
    raise RuntimeError(errors[0])


def read_npz(builds: tuple[Build, ...], size: int, weights: str, folder: Path) -> Original:
    """Load Google's arrays with timm's reader; what it leaves untouched would be random."""
    has_head = "head/kernel" in (tensors := read_weights(folder / weights)) or "head/bias" in tensors
    model = build_empty(builds[0 if has_head else 1])
    for tensor in model.state_dict().values():
        tensor.fill_(torch.nan)
    model.load_pretrained(str(folder / weights))
    if left := [name for name, tensor in model.state_dict().items() if tensor.isnan().any()]:
        raise RuntimeError(f"timm leaves {left[0]} at random")
    if model.patch_embed.proj.weight.shape != tensors["embedding/kernel"].permute(3, 2, 0, 1).shape:
        raise RuntimeError("timm resizes the patch embedding")
    return Original((size, size), model)


def write_renamed(build: Build, rename: Any, weights: str, folder: Path) -> None:
    """Write a bare file of a noisy model, under the names of another library."""
    model = build_empty(build)
    fill_with_noise(model.state_dict())
    tensors = share_blocks(model.state_dict())
    write_weights(rename(tensors) if rename else tensors, folder / weights)


def to_npz(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename timm's tensors to those of Google's original release."""
    found = {"cls": tensors["cls_token"], "Transformer/posembed_input/pos_embedding": tensors["pos_embed"]}
    found["embedding/kernel"] = tensors["patch_embed.proj.weight"].permute(2, 3, 1, 0)
    found["embedding/bias"] = tensors["patch_embed.proj.bias"]
    for name in ("weight", "bias"):
        found[f"Transformer/encoder_norm/{'scale' if name == 'weight' else 'bias'}"] = tensors[f"norm.{name}"]
    found |= {"head/kernel": tensors["head.weight"].T, "head/bias": tensors["head.bias"]}
    width = tensors["cls_token"].shape[-1]
    heads, depth = width // 64, sum(name.endswith(".norm1.weight") for name in tensors)
    for n in range(depth):
        block, here = f"Transformer/encoderblock_{n}", f"blocks.{n}"
        for theirs, ours in (("LayerNorm_0", "norm1"), ("LayerNorm_2", "norm2")):
            found[f"{block}/{theirs}/scale"] = tensors[f"{here}.{ours}.weight"]
            found[f"{block}/{theirs}/bias"] = tensors[f"{here}.{ours}.bias"]
        attention = f"{block}/MultiHeadDotProductAttention_1"
        weights, biases = (tensors[f"{here}.attn.qkv.{p}"].chunk(3) for p in ("weight", "bias"))
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            found[f"{attention}/{name}/kernel"] = weight.T.reshape(width, heads, -1)
            found[f"{attention}/{name}/bias"] = bias.reshape(heads, -1)
        found[f"{attention}/out/kernel"] = tensors[f"{here}.attn.proj.weight"].T.reshape(heads, -1, width)
        found[f"{attention}/out/bias"] = tensors[f"{here}.attn.proj.bias"]
        for i, layer in enumerate(("fc1", "fc2")):
            found[f"{block}/MlpBlock_3/Dense_{i}/kernel"] = tensors[f"{here}.mlp.{layer}.weight"].T
            found[f"{block}/MlpBlock_3/Dense_{i}/bias"] = tensors[f"{here}.mlp.{layer}.bias"]
    return {name: tensor.contiguous() for name, tensor in found.items()}


def to_openai(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename timm's CLIP tower to OpenAI's names."""
    names = {"norm_pre.": "ln_pre.", "norm.": "ln_post.", "patch_embed.proj.": "conv1."}
    inner = {"norm1.": "ln_1.", "norm2.": "ln_2.", "attn.qkv.": "attn.in_proj_", "attn.proj.": "attn.out_proj."}
    inner |= {"mlp.fc1.": "mlp.c_fc.", "mlp.fc2.": "mlp.c_proj."}
    found = {"class_embedding": tensors["cls_token"][0, 0], "positional_embedding": tensors["pos_embed"][0]}
    found["proj"] = tensors["head.weight"].T
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"blocks\.(\d+)\.(.*?)(weight|bias)", name):
            found[f"transformer.resblocks.{match[1]}.{inner[match[2]]}{match[3]}"] = tensor
        elif (start := name.removesuffix("weight").removesuffix("bias")) in names:
            found[names[start] + name.removeprefix(start)] = tensor
    return {f"visual.{name}": tensor for name, tensor in found.items()}


def to_dinov2(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename timm's DINOv2 to the names of its authors, whose positions have a row for the class token."""
    found = {name.replace("reg_token", "register_tokens"): tensor for name, tensor in tensors.items()}
    found["mask_token"] = torch.zeros(1, tensors["cls_token"].shape[-1])
    if "register_tokens" in found:
        found["pos_embed"] = torch.cat([torch.zeros_like(found["cls_token"]), found["pos_embed"]], dim=1)
    return found


def to_dinov3(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename timm's DINOv3 to the names of its authors, who mask the bias of the keys and store the rotation."""
    width = tensors["cls_token"].shape[-1]
    quarter = {48: 3}.get(width, 16)  # of the width of a head
    found = {"mask_token": torch.zeros(1, width), "rope_embed.periods": 100.0 ** (torch.arange(quarter) / quarter)}
    gated = "blocks.0.mlp.fc1_g.weight" in tensors
    names = {"reg_token": "storage_tokens", "gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
    names |= {"mlp.fc1_g": "mlp.w1", "mlp.fc1_x": "mlp.w2", "mlp.fc2": "mlp.w3"} if gated else {}
    for name, tensor in tensors.items():
        if name.endswith("attn.q_bias"):
            start = name.removesuffix("q_bias")
            found[f"{start}qkv.bias"] = torch.cat([tensor, tensor.flip(0), tensors[f"{start}v_bias"]])
            found[f"{start}qkv.bias_mask"] = torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(width)
        elif not name.endswith("attn.v_bias"):
            for ours, theirs in names.items():
                name = name.replace(ours, theirs)
            found[name] = tensor
    return found


def from_dinov2(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Read them back as timm does, which knows such a file by the mask token."""
    return checkpoint_filter_fn({"mask_token": torch.zeros(1, 384)} | tensors, model)


# --- our own --------------------------------------------------------------------------------------------------


def write_own(fields: dict[str, Any], answers: dict[str, Any], folder: Path) -> None:
    """Write one of our own folders: fields of its config, and what its card says of its outputs."""
    from vitreous.data.preprocess import default_preprocess

    config = ViTConfig(image_size=32, patch_size=8, width=48, depth=3, heads=4, classes=7, norm_eps=1e-5, **fields)
    model = ViT(config).eval()
    fill_with_noise(model.state_dict())
    model.card = Card(name="own", preprocess=default_preprocess(config), **answers)
    save(model, folder)


def read_own(folder: Path) -> Original:
    """Build the config that the file states, and load the weights strictly."""
    from vitreous.data.preprocess import Preprocess

    stated = json.loads((folder / "config.json").read_text())["vitreous"]
    model = ViT(ViTConfig(**stated["config"])).eval()
    model.load_state_dict({name: t.float() for name, t in read_weights(folder / "model.safetensors").items()})
    task, thresholds = stated["task"], stated["thresholds"] and tuple(stated["thresholds"])
    mean, std = torch.tensor(stated["standard"] or [[0.0, 1.0]]).T  # of numbers that are still learned
    outputs = (lambda x: model(x) * std + mean) if task == "regress" else model
    return Original(model.config.size, outputs, Preprocess.from_dict(stated["preprocess"]), (task, thresholds))


OWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vitreous": ({}, {}),
    "vitreous pixels": ({"dense": "linear", "dense_blocks": (0, 2)}, {"task": "segment"}),
    "vitreous pixels, decoder": ({"dense": "decoder", "dense_blocks": (1, 2)}, {"task": "segment"}),
    "vitreous labels": ({}, {"task": "multilabel", "thresholds": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)}),
    "vitreous numbers": ({}, {"task": "regress", "standard": tuple((4.0 * i, 1.0 + i) for i in range(7))}),
}


TIMM = {
    "timm vit": ("vit_base_patch16_224", SMALL_TIMM),
    "timm vit_gap": ("vit_base_patch16_224", SMALL_TIMM | {"class_token": False, "global_pool": "avg"}),
    "timm mae": ("vit_base_patch16_224", SMALL_TIMM | {"global_pool": "avg"}),
    "timm deit distilled": ("deit_base_distilled_patch16_224", SMALL_TIMM),
    "timm deit3": ("deit3_base_patch16_224", SMALL_TIMM),
    "timm dinov2 registers": ("vit_base_patch14_reg4_dinov2", SMALL_TIMM),
    "timm clip": ("vit_base_patch16_clip_quickgelu_224", SMALL_TIMM),
    "timm siglip": ("vit_base_patch16_siglip_224", SMALL_TIMM),
    "timm dinov3": ("vit_small_patch16_dinov3_qkvb", SMALL_TIMM),
    "timm rope_mixed_ape": ("vit_small_patch16_rope_mixed_ape_224", SMALL_TIMM),
    "timm eva02 clip": ("eva02_base_patch16_clip_224", SMALL_TIMM),
    "timm pe_core": ("vit_pe_core_tiny_patch16_384", SMALL_TIMM),
    "timm test_vit": ("test_vit", {}),
    "timm hybrid": ("vit_tiny_r_s16_p8_224", SMALL_TIMM | {"patch_size": 2}),
    "timm aimv2": ("aimv2_large_patch14_224", SMALL_TIMM),
    "timm beit": ("beit_base_patch16_224", SMALL_TIMM),
    "timm relative positions": ("vit_relpos_medium_patch16_cls_224", SMALL_TIMM | {"rel_pos_dim": 16}),
    "timm cait": ("cait_xxs24_224", SMALL_TIMM),
    "timm sapiens2": ("vit_base_patch16_sapiens2", SMALL_TIMM | {"num_kv_heads": [4] * 3}),
    "timm post norm": ("vit_base_patch16_rpn_224", SMALL_TIMM),
    "timm shared relative positions": ("vit_srelpos_small_patch16_224", SMALL_TIMM | {"rel_pos_dim": 16}),
}
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "transformers vit": ("ViT", "ForImageClassification", {}, "ViT"),
    "transformers vit pooler": ("ViT", "Model", {}, ""),
    "transformers deit": ("DeiT", "ForImageClassificationWithTeacher", {}, ""),
    "transformers dinov2": ("Dinov2", "ForImageClassification", {}, "Bit"),
    "transformers dinov2 swiglu": ("Dinov2", "Model", {"use_swiglu_ffn": True}, ""),
    "transformers dinov2 registers": ("Dinov2WithRegisters", "ForImageClassification", {}, ""),
    "transformers clip": ("CLIPVision", "ModelWithProjection", {"projection_dim": 20}, "CLIP"),
    "transformers mae": ("ViTMAE", "Model", {}, ""),
    "transformers msn": ("ViTMSN", "ForImageClassification", {}, ""),
    "transformers siglip": ("SiglipVision", "Model", {}, "Siglip"),
    "transformers dinov3": ("DINOv3ViT", "Model", {"num_register_tokens": 2}, ""),
    "transformers dinov3 gated": ("DINOv3ViT", "Model", {"use_gated_mlp": True, "hidden_act": "silu"}, ""),
    "transformers ijepa": ("IJepa", "Model", {}, ""),
    "transformers ijepa classifier": ("IJepa", "ForImageClassification", {}, ""),
    "transformers siglip classifier": ("Siglip", "ForImageClassification", {}, "Siglip"),
    "transformers beit": ("Beit", "ForImageClassification", {"use_relative_position_bias": True}, "Beit"),
    "transformers beit shared": (
        "Beit",
        "Model",
        {
            "use_shared_relative_position_bias": True,
            "use_absolute_position_embeddings": True,
            "use_mean_pooling": False,
        },
        "",
    ),
    "transformers data2vec": ("Data2VecVision", "Model", {"use_shared_relative_position_bias": True}, ""),
    "transformers dpt": (
        "DPT",
        "ForDepthEstimation",
        {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8] * 4},
        "DPT",
    ),
    "transformers dpt pooler": ("DPT", "Model", {}, ""),
    "transformers aimv2": ("Aimv2Vision", "Model", {}, ""),
    "transformers aimv2 headless": ("Aimv2Vision", "Model", {"use_head": False}, ""),
}


def _timm(name: str, **arguments: Any) -> Build:
    return partial(timm.create_model, name, **arguments)


def _torchvision(headless: bool) -> nn.Module:
    model = torchvision.models.vit_b_32(num_classes=7)
    if headless:
        model.heads = nn.Identity()
    return model


def _bare(builds: tuple[Build, ...], to: Any, back: Any, size: int, weights: str, **options: Any) -> Base:
    read = partial(read_npz, builds, size) if weights.endswith("npz") else partial(read_strictly, builds, back, size)
    return Base(partial(write_renamed, builds[0], to, weights), partial(read, weights), weights, (), **options)


TINY = tuple(_timm("vit_tiny_patch16_224", img_size=64, num_classes=classes) for classes in (7, 0))
REGISTERS = tuple(_timm(f"vit_small_patch14_{kind}dinov2", img_size=70) for kind in ("reg4_", ""))
CLIP = (_timm("vit_base_patch32_clip_quickgelu_224", num_classes=512),)
DINOV3 = (_timm("vit_small_patch16_dinov3_qkvb", img_size=64, num_classes=0, global_pool="token"),)
BASES: dict[str, Base] = {
    **{name: Base(partial(write_timm, *given, 7), read_timm) for name, given in TIMM.items()},
    **{
        name: Base(partial(write_transformers, *given), partial(read_transformers, given[0] + given[1]))
        for name, given in TRANSFORMERS.items()
    },
    **{name: Base(partial(write_own, *given), read_own) for name, given in OWN.items()},
    "bare timm": _bare(TINY, None, None, 64, "checkpoint.safetensors"),
    "google": _bare(TINY, to_npz, None, 64, "checkpoint.npz"),
    "torchvision": _bare(
        (partial(_torchvision, False), partial(_torchvision, True)), None, None, 224, "checkpoint.pth", large=True
    ),
    "openai clip": _bare(
        CLIP, to_openai, checkpoint_filter_fn, 224, "ViT-B-32.pth", assume={"activation": "quick_gelu"}, large=True
    ),
    "dinov3": _bare(DINOV3, to_dinov3, from_dinov3, 64, "checkpoint.pth", assume={"image_size": (64, 64)}, large=True),
    "dinov2": _bare(REGISTERS, to_dinov2, from_dinov2, 70, "checkpoint.pth", large=True),
}
