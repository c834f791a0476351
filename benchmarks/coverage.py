"""Load every ViT architecture that the installed timm and transformers can build, and compare with the original.

python benchmarks/coverage.py --processes 14 --json coverage.json [--resume] [--only REGEX] [--library timm]

Each architecture of timm's ViT modules is tried with every pretrained tag, in three forms: a Hub folder with the
config.json that timm writes, a bare file with a neutral name, and a file named after the tag. A case is `exact` (same
outputs; for a folder, same preprocessing too), `wrong`, `refused` (one line that says why) or a `crash`.

The files have all names and shapes of the real checkpoints, so that name, config and weights never contradict each
other, but they are cheap: blocks after the first two are holes in a safetensors file, which take no bytes of the disk.
timm's own model is built with two blocks. Ours is loaded by `load` itself, which checks the tensors of all blocks; only
the last step, copying them out of the file, and the forward pass stop after two. Every tensor is noise, scaled so that
tokens stay near zero: only then does the epsilon of a layer norm show in the output.

Tags that make the same model of timm's (same architecture, classes, image size and pooling) share its file and its
output. A form that gives the config and the tensors of one already compared is not run again: it cannot differ.
Preprocessing, names and config files are tried for each tag.

transformers' models state all their sizes in config.json, so they are built small through their config, and saved by
`save_pretrained`; their bare file is the same weights alone.

`--json` is written after each architecture; `--resume` keeps what it holds and tries only the rest. The exit code is 1
if anything is wrong or crashes. `--table README.md docs/guides/checkpoint.md` writes the counts between two markers of
these files, with the date.

`--full [TAG…]` takes models of timm's as they are instead, with all their blocks, one at a time; by default a small one
of each family (`FULL`).
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import inspect
import json
import os
import re
import resource
import sys
import tempfile
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

for part in (".", "support"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / part))
from originals import difference as output_difference  # noqa: E402
from originals import fill_with_noise, outputs_of_transformers, photo  # noqa: E402

MODULES = (
    *("vision_transformer", "deit", "eva", "beit", "vision_transformer_hybrid", "vision_transformer_relpos"),
    *("vision_transformer_sam", "naflexvit", "cait", "xcit"),
)
FORMS = ("folder", "bare", "named")
RESULTS = ("exact", "wrong", "refused", "crash")
DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.bool: "BOOL"}
LARGE = (
    r"_7b|enormous|gigantic|giant|huge|so\d+m|large|_1024|_8\d\d"  # tried first, so that none is left alone at the end
)

FULL = (  # the smallest of each family
    *("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "flexivit_small.1200ep_in1k", "vit_base_patch16_rpn_224.sw_in1k"),
    *("deit_tiny_distilled_patch16_224.fb_in1k", "deit3_small_patch16_224.fb_in1k", "vit_base_patch16_224.mae"),
    *(
        "vit_small_patch8_224.dino",
        "vit_small_patch14_reg4_dinov2.lvd142m",
        "vit_base_patch32_clip_quickgelu_224.openai",
    ),
    *("vit_base_patch16_siglip_224.webli", "vit_small_patch16_dinov3.lvd1689m", "eva_large_patch14_196.in22k_ft_in1k"),
    *("eva02_tiny_patch14_224.mim_in22k", "eva02_base_patch16_clip_224.merged2b", "vit_pe_core_tiny_patch16_384.fb"),
    *(
        "vit_small_patch16_rope_mixed_224.naver_in1k",
        "beit_base_patch16_224.in22k_ft_in22k_in1k",
        "cait_xxs24_224.fb_dist_in1k",
    ),
    *(
        "beit3_base_patch16_224.in22k_ft_in1k",
        "aimv2_large_patch14_224.apple_pt",
        "vit_relpos_small_patch16_224.sw_in1k",
    ),
    *(
        "vit_tiny_r_s16_p8_224.augreg_in21k",
        "naflexvit_base_patch16_gap.e300_s576_in1k",
        "vit_base_patch16_sapiens2.fb",
    ),
)
ROWS: dict[str, tuple[str, ...]] = {  # of the table: families and timm's modules
    "timm: ViT, AugReg, FlexiViT, DeiT, MAE, DINO, DINOv2, CLIP, SigLIP, AIMv2": ("vision_transformer", "deit"),
    "timm: DINOv3, EVA, EVA-02, Perception Encoder, Sapiens 2, rotary positions": ("eva",),
    "timm: BEiT, BEiT-3, relative positions, CaiT, NaFlex ViT, hybrids of BiT and ViT, MobileCLIP": (
        *("beit", "vision_transformer_relpos", "cait", "naflexvit", "vision_transformer_hybrid"),
    ),
    "timm: XCiT, SAM": ("xcit", "vision_transformer_sam"),
}
MARKERS = "<!-- coverage: benchmarks/coverage.py --table writes this -->", "<!-- /coverage -->"


@dataclass(frozen=True)
class Outcome:
    """What became of one checkpoint in one form."""

    library: str
    family: str
    name: str
    form: str
    result: str
    reason: str = ""


@contextlib.contextmanager
def in_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="coverage-") as name:
        yield Path(name)


def attempt(path: Path, reference: Any) -> tuple[str, str]:
    """Load `path`, and ask `reference` how the model differs from the original."""
    from vitreous.weights.load import load

    try:
        model = load(path)
    except (ValueError, OSError) as error:
        text = str(error).replace(str(path), "").removeprefix(": ")
        return ("crash", f"error of several lines: {text!r:.200}") if "\n" in text else ("refused", text)
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        return "crash", f"{type(error).__name__}: {error!s:.160} ({Path(line.filename).name}:{line.lineno})"
    try:
        difference = reference(model)
    except Exception as error:
        difference = f"the two cannot be compared ({type(error).__name__}: {error!s:.120})"
    return ("wrong", difference) if difference else ("exact", "")


# --- timm -----------------------------------------------------------------------------------------------------


def timm_tags() -> dict[str, dict[str, list[str]]]:
    """Return module → architecture → pretrained tags."""
    import timm

    found: dict[str, dict[str, list[str]]] = {}
    for module in MODULES:
        for tag in timm.list_models(module=module, pretrained=True):
            found.setdefault(module, {}).setdefault(tag.split(".")[0], []).append(tag)
    return found


class WithoutInit(TorchFunctionMode):
    """Skip the random numbers of a new model: noise replaces them."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        skipped = (Tensor.uniform_, Tensor.normal_, Tensor.erfinv_, Tensor.clamp_)
        return args[0] if function in skipped else function(*args, **(kwargs or {}))


def build_timm(tag: str) -> tuple[nn.Module | None, nn.Module]:
    """Return timm's model with two blocks and noise in every tensor, and the whole model without numbers.

    Some architectures cannot be built with two blocks: the first is None, and such a model must not load.
    """
    import timm

    with torch.device("meta"), WithoutInit():
        whole = timm.create_model(tag)
    two: dict[str, Any] = {"depth": 2}
    if "sapiens2" in tag:  # states the heads of keys block by block
        two["num_kv_heads"] = tuple(block.attn.num_kv_heads for block in list(whole.blocks)[:2])  # type: ignore[arg-type]
    try:
        with torch.device("meta"), WithoutInit():
            model = timm.create_model(tag, **two)
        stored = model.state_dict()
        if any(name not in stored or not held.is_floating_point() for name, held in model.named_buffers()):
            with WithoutInit():
                model = timm.create_model(tag, **two)  # tables that are computed, not stored: build it for real
        else:
            model = model.to_empty(device="cpu")
    except Exception:
        return None, whole
    with torch.no_grad():
        fill_with_noise(model.state_dict())
    return model.eval(), whole


def build_two_blocks(build_vit: Any, config: Any, tensors: dict[str, Tensor], *rest: Any, **options: Any) -> nn.Module:
    """Build a model without numbers from all tensors, with every check; then give numbers to its first two blocks."""
    model = build_vit(config, {name: tensor.to("meta") for name, tensor in tensors.items()}, *rest, **options)
    model.blocks = model.blocks[:2]
    held = {name: tensors.get(name, empty) for name, empty in model.state_dict().items()}
    model.load_state_dict({name: tensor.float().clone() for name, tensor in held.items()}, assign=True)
    return model


def write_with_holes(model: nn.Module | None, whole: nn.Module, path: Path) -> None:
    """Write a safetensors file of all tensors of `whole`: those that `model` has, too, are there, the others holes."""
    numbers = model.state_dict() if model is not None else {}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    filled, end = [], 0
    for name, empty in whole.state_dict().items():
        start, end = end, end + empty.numel() * empty.itemsize
        header[name] = {"dtype": DTYPES[empty.dtype], "shape": list(empty.shape), "data_offsets": [start, end]}
        tensor = numbers.get(name)
        if tensor is not None and name == "rope.freqs":  # a row for each block
            tensor = tensor[:, [block % 2 for block in range(empty.shape[1])]]
        if tensor is not None and tensor.shape == empty.shape:
            filled.append((start, tensor))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        first = file.tell()
        for start, tensor in filled:
            file.seek(first + start)
            tensor.flatten().view(torch.uint8).numpy().tofile(file)
        file.truncate(first + end)


@dataclass
class Comparison:
    """How models of ours differ from one of timm's; a config with tensors that were compared is not run again."""

    model: Any  # None: timm cannot build it
    known: list[tuple[Any, dict[str, Tensor], str]] = field(default_factory=list)
    output: Tensor | None = None

    def __call__(self, ours: Any) -> str:
        from timm.data import resolve_data_config

        if self.model is None:
            return "it loads, but timm cannot build it with two blocks: no comparison"
        shape = resolve_data_config(pretrained_cfg=self.model.pretrained_cfg)["input_size"]
        if ours.config.size != tuple(shape[1:]):
            return f"image size {ours.config.size} instead of {tuple(shape[1:])}"
        tensors = ours.state_dict()
        for config, others, found in self.known:
            if config == ours.config and all(torch.equal(tensors[name], others[name]) for name in others):
                return found
        image = torch.randn(1, *shape, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            if self.output is None:
                self.output = self.model(image)
            found = output_difference(ours(image), self.output)
        self.known.append((ours.config, tensors, found))
        return found

    def with_preprocessing(self, ours: Any) -> str:
        """Compare the preprocessing as well."""
        from timm.data import create_transform, resolve_data_config

        if found := self(ours):
            return found
        transform = create_transform(**resolve_data_config(pretrained_cfg=self.model.pretrained_cfg))
        difference = (ours.card.preprocess(photo()) - transform(photo())).abs().max().item()
        return "" if difference < 0.03 else f"preprocessing differs by {difference:.2g}"


def cover_architecture(module: str, tags: list[str], forms: tuple[str, ...]) -> list[Outcome]:
    """Try every tag of one architecture; tags that make the same model share one file."""
    from timm.models import get_pretrained_cfg
    from timm.models._hub import save_config_for_hf

    from vitreous.weights import load
    from vitreous.weights.build import build_vit

    outcomes = []
    alike: dict[str, list[str]] = defaultdict(list)
    for tag in tags:
        settings = get_pretrained_cfg(tag).to_dict()
        alike[str([settings.get(key) for key in ("num_classes", "input_size", "global_pool")])].append(tag)
    for group in alike.values():
        model, whole = build_timm(group[0])
        comparison = Comparison(model)
        with in_folder() as folder:
            (folder / "hub").mkdir()
            stored = folder / "hub" / "model.safetensors"
            write_with_holes(model, whole, stored)
            for tag in group:
                for built in (model, whole):
                    if built is not None:
                        built.pretrained_cfg = get_pretrained_cfg(tag).to_dict()
                save_config_for_hf(whole, folder / "hub" / "config.json")
                for form, name in (
                    ("folder", "hub"),
                    ("bare", "checkpoint.safetensors"),
                    ("named", f"{tag}.safetensors"),
                ):
                    if form not in forms:
                        continue
                    if form != "folder":
                        os.link(stored, folder / name)
                    compare = comparison.with_preprocessing if form == "folder" else comparison
                    with mock.patch.object(load, "build_vit", partial(build_two_blocks, build_vit)):
                        outcomes.append(Outcome("timm", module, tag, form, *attempt(folder / name, compare)))
                    if form != "folder":
                        (folder / name).unlink()
    return outcomes


def cover_full(tag: str) -> Outcome:
    """Load timm's model with all its blocks and noise in every tensor, and compare it with itself in timm."""
    import timm
    from safetensors.torch import save_file
    from timm.models._hub import save_config_for_hf

    with WithoutInit():
        model = timm.create_model(tag).eval()
    fill_with_noise(model.state_dict())
    with in_folder() as folder:
        save_config_for_hf(model, folder / "config.json")
        save_file(model.state_dict(), folder / "model.safetensors")
        result = attempt(folder, Comparison(model).with_preprocessing)
    blocks = [each for name, each in model.named_children() if name.startswith("blocks")]
    print(f"| {tag} | {sum(map(len, blocks))} | {sum(p.numel() for p in model.parameters()) / 1e6:,.0f} | ", end="")  # type: ignore[arg-type]
    print(f"{': '.join(part for part in result if part)} |", flush=True)
    return Outcome("timm", "full depth", tag, "folder", *result)


# --- transformers ---------------------------------------------------------------------------------------------

SMALL = {  # ViT-Ti's sizes: those of a bare file have to be well known, else nothing is ever assumed of it
    "hidden_size": 192,
    "num_hidden_layers": 12,
    "num_attention_heads": 3,
    "intermediate_size": 768,
    "embed_dim": 192,
    "depth": 12,
    "num_heads": 3,
    "head_dim": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_patches": 16,
    "num_channels": 3,
    "projection_dim": 20,
    "vocab_size": 99,
    "max_position_embeddings": 24,
}
SUFFIXES = (
    *("Model", "ForImageClassification", "ForImageClassificationWithTeacher", "ForMaskedImageModeling"),
    *("ForPreTraining", "ModelWithProjection", "Backbone", "ForUniversalSegmentation"),
    *("ForSemanticSegmentation", "ForObjectDetection", "ForDepthEstimation"),
)


def transformers_classes() -> list[str]:
    """Return transformers' classes that take an image of one size in patches."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    found = []
    for kind, config_name in CONFIG_MAPPING_NAMES.items():
        try:
            fields = vars(getattr(transformers, config_name)())
        except Exception:
            continue
        vision = fields.get("vision_config")
        sizes = fields if vision is None else vars(vision) if hasattr(vision, "__dict__") else {}
        stem = config_name.removesuffix("Config")
        sized = "patch_size" in sizes and ("image_size" in sizes or stem.startswith("Siglip2"))  # a number of patches
        if not sized or ("text_config" in fields and not is_dual(getattr(transformers, f"{stem}Model", None))):
            continue
        for suffix in SUFFIXES:
            owner = getattr(transformers, stem + suffix, None)
            if inspect.isclass(owner) and getattr(owner, "config_class", None) is getattr(transformers, config_name):
                found.append(f"{kind}:{stem}{suffix}")
    return sorted(set(found))


def is_dual(model: Any) -> bool:
    """Return whether a model with text is an image tower beside a text tower, not a language model that sees."""
    return hasattr(model, "get_text_features")


def shrink(config: Any) -> Any:
    """Make a transformers config small, towers included."""
    for name, value in SMALL.items():
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, value)
    for tower in ("vision_config", "text_config"):
        if hasattr(getattr(config, tower, None), "to_dict"):
            shrink(getattr(config, tower))
    return config


def build_transformers(name: str) -> nn.Module:
    import transformers

    owner = getattr(transformers, name.partition(":")[2])
    config = shrink(owner.config_class())
    if "Classification" in name:
        config.num_labels = 7
    model = owner(config).eval()
    with torch.no_grad():
        fill_with_noise(model.state_dict())
    return model


def cover_transformers(name: str, forms: tuple[str, ...]) -> list[Outcome]:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    family = name.partition(":")[0]
    try:
        model = build_transformers(name)
    except Exception as error:
        print(f"not built: {name} ({type(error).__name__}: {error!s:.100})", file=sys.stderr)
        return []

    def reference(ours: Any) -> str:
        image = torch.randn(2, ours.config.channels, *ours.config.size, generator=torch.Generator().manual_seed(1))
        theirs = outputs_of_transformers(model, image)
        with torch.no_grad():
            return output_difference(
                ours.forward_features(image)[:, -theirs.shape[1] :] if theirs.dim() == 3 else ours(image), theirs
            )

    outcomes = []
    with in_folder() as folder:
        try:
            model.save_pretrained(folder / "hub")
        except Exception as error:
            print(f"not saved: {name} ({type(error).__name__}: {error!s:.100})", file=sys.stderr)
            return []
        bare = folder / "checkpoint.safetensors"
        os.link(folder / "hub" / "model.safetensors", bare)
        for form, path in (("folder", folder / "hub"), ("bare", bare)):
            if form in forms:
                outcomes.append(Outcome("transformers", family, name, form, *attempt(path, reference)))
    return outcomes


# --- all together ---------------------------------------------------------------------------------------------


def start_worker(memory: int) -> None:
    """Prepare a worker: one thread, and a limit of its address space, so that a runaway case fails alone."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (memory << 30, memory << 30))
    warnings.filterwarnings("ignore")


def cover(
    only: str, libraries: list[str], forms: tuple[str, ...], processes: int, memory: int, done: set[str]
) -> Iterator[list[Outcome]]:
    """Yield the outcomes of every architecture whose name matches `only`, without the names in `done`."""
    torch.set_num_threads(1)  # before the workers are forked
    names = transformers_classes() if "transformers" in libraries else []
    names = [name for name in names if re.search(only, name) and name not in done]
    architectures = []
    for module, tags in timm_tags().items() if "timm" in libraries else ():
        matching = ([tag for tag in each if re.search(only, tag) and tag not in done] for each in tags.values())
        architectures += [(module, each) for each in matching if each]
    architectures.sort(key=lambda pair: not any(re.search(LARGE, tag) for tag in pair[1]))
    with ProcessPoolExecutor(processes, initializer=start_worker, initargs=(memory,)) as pool:
        jobs = [pool.submit(cover_architecture, module, tags, forms) for module, tags in architectures]
        jobs += [pool.submit(cover_transformers, name, forms) for name in names]
        for number, job in enumerate(as_completed(jobs)):
            yield job.result()
            print(f"\r{number + 1} of {len(jobs)}", end="", file=sys.stderr, flush=True)


def summarise(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the table of counts, then every case that is not exact, by reason."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for each in outcomes:
        family = each.family if each.library == "timm" else "(all)"
        for row in {family, "(all)"}:
            counts[f"{each.library} {row}", each.form][each.result] += 1
    yield f"{'':44}{'form':8}" + "".join(f"{result:>9}" for result in RESULTS)
    for (family, form), found in sorted(counts.items()):
        yield f"{family:44}{form:8}" + "".join(f"{found[result]:9}" for result in RESULTS)
    for result in ("crash", "wrong", "refused"):
        reasons: dict[str, list[str]] = defaultdict(list)
        for each in outcomes:
            if each.result == result:
                plain = each.reason if result == "refused" else f"{each.name}: {each.reason}"
                reasons[plain.replace(each.name, "NAME") if result == "refused" else plain].append(
                    f"{each.name} ({each.form})"
                )
        for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
            shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
            yield f"{result} {len(names):4}  {reason}\n              {shown}"


def coverage_table(outcomes: list[Outcome], date: datetime.date) -> str:
    """Return the table of what is exact as a Hub folder, for README and guide, with all that is wrong."""
    folders = [each for each in outcomes if each.form == "folder"]
    tags = [each for each in folders if each.library == "timm"]
    classes = [each for each in folders if each.library == "transformers"]
    read = {each.family for each in classes if each.result == "exact"}

    def row(name: str, cases: list[Outcome]) -> str:
        return f"| {name} | {sum(each.result == 'exact' for each in cases)} | {len(cases)} |"

    exact = sum(each.result == "exact" for each in tags)
    counts = Counter(each.result for each in outcomes)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("timm", "transformers"))
    return "\n".join(
        [
            "| checkpoints, as folders of the Hub | exact | of |",
            "|---|--:|--:|",
            *(row(name, [each for each in tags if each.family in modules]) for name, modules in ROWS.items()),
            row(f"all of timm's pretrained ViTs: **{exact / max(len(tags), 1):.0%}**", tags),
            row(
                f"transformers: the {len(read)} model types that are read, all their classes",
                [each for each in classes if each.family in read],
            ),
            "",
            f"*Noise in every tensor, compared with the original's output and preprocessing ({versions}, {date}; "
            f"`python benchmarks/coverage.py`). "
            f"The rest is refused in one line; in all forms {counts['wrong']} are wrong, {counts['crash']} crash.*",
        ]
    )


def write_table(path: Path, table: str) -> None:
    """Replace what stands between the two markers of a page."""
    first, last = MARKERS
    before, begin, rest = path.read_text(encoding="utf-8").partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{path} has no {first} … {last}")
    path.write_text(f"{before}{first}\n{table}\n{last}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression of the names to try")
    parser.add_argument("--library", nargs="+", default=["timm", "transformers"], choices=["timm", "transformers"])
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--memory", type=int, default=64, help="GiB of address space for each process, mapped files included"
    )
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    parser.add_argument("--resume", action="store_true", help="keep what the JSON file holds and try only the rest")
    parser.add_argument("--table", nargs="+", type=Path, default=[], help="write the counts into these pages")
    parser.add_argument("--full", nargs="*", metavar="TAG", help="instead, load whole models of timm's, one at a time")
    given = parser.parse_args()
    if given.full is not None:
        print("| timm's tag | blocks | million parameters | result |\n|---|--:|--:|---|")
        sys.exit(any(cover_full(tag).result != "exact" for tag in given.full or FULL))
    outcomes = []
    if given.resume and given.json.exists():
        outcomes = [Outcome(**each) for each in json.loads(given.json.read_text())]
    done = {each.name for each in outcomes}
    for found in cover(given.only, given.library, tuple(given.forms), given.processes, given.memory, done):
        outcomes += found
        if given.json:  # as it goes, and whole or not at all: the run may be ended
            new = given.json.with_suffix(".new")
            new.write_text(json.dumps([asdict(each) for each in outcomes], indent=1))
            new.replace(given.json)
    print(*summarise(outcomes), sep="\n")
    for page in given.table:
        write_table(page, coverage_table(outcomes, datetime.date.today()))
    sys.exit(any(each.result in ("wrong", "crash") for each in outcomes))


if __name__ == "__main__":
    main()
