"""Load every ViT architecture that the installed timm and transformers can build, and compare with the original.

python benchmarks/coverage.py [--only REGEX] [--library timm] [--forms folder bare named] [--json coverage.json]

Each architecture of timm's ViT modules is tried with every pretrained tag, in three forms: a Hub folder with the
config.json that timm writes, a bare file with a neutral name, and a file named after the tag. A case is `exact` (same
outputs; for a folder, same preprocessing too), `wrong`, `refused` (one line that says why) or a `crash`.

The files have the names and shapes of the real checkpoints, so that name, config and weights never contradict each
other, but they are small: all blocks share the numbers of the first two, and torch.save writes shared numbers once.
timm's own model is built with these two blocks, and ours is cut to two before both run. Every tensor is noise, scaled
so that tokens stay near zero: only then does the epsilon of a layer norm show in the output.

transformers' models state all their sizes in config.json, so they are built small through their config, and saved by
`save_pretrained`; their bare file is the same weights alone.
"""

import argparse
import contextlib
import fcntl
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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
LARGE = 500_000_000  # parameters; larger models are loaded one at a time
LOCK = Path(tempfile.gettempdir()) / f"coverage-{os.getuid()}.lock"


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


def build_timm(tag: str) -> tuple[nn.Module | None, nn.Module]:
    """Return timm's model with two blocks and noise in every tensor, and the whole model without numbers.

    Some architectures cannot be built with two blocks: the first is None, and such a model must not load.
    """
    import timm

    with torch.device("meta"):
        whole = timm.create_model(tag)
    try:
        with torch.device("meta"):
            model = timm.create_model(tag, depth=2)
        persistent = set(model.state_dict())
        if any(name not in persistent for name, _ in model.named_buffers()):
            model = timm.create_model(tag, depth=2)  # tables that are computed, not stored: build it for real
        else:
            model = model.to_empty(device="cpu")
    except Exception:
        return None, whole
    with torch.no_grad():
        fill_with_noise(model.state_dict())
    return model.eval(), whole


def whole_state_dict(model: nn.Module | None, whole: nn.Module) -> dict[str, Tensor]:
    """Return tensors under all names of the whole model; blocks after the first two share the numbers of those.

    Sixteen blocks at most share one copy: a file that claims far more numbers than it holds is refused as a bomb.
    """
    numbers = model.state_dict() if model is not None else {}
    copies: dict[tuple[str, int], Tensor] = {}
    found = {}
    for name, empty in whole.state_dict().items():
        number = int(match[1]) if (match := re.search(r"\bblocks\.(\d+)\.", name)) else 0
        first = re.sub(r"\bblocks\.\d+\.", f"blocks.{number % 2}.", name)
        tensor = numbers.get(name, numbers.get(first))
        if tensor is not None and name == "rope.freqs":  # a row for each block
            tensor = tensor[:, [block % 2 for block in range(empty.shape[1])]]
        if tensor is None or tensor.shape != empty.shape:
            tensor = torch.full((1,) * empty.dim(), 0.01, dtype=empty.dtype).expand(empty.shape)
        elif number >= 16:
            tensor = copies.setdefault((first, number // 16), tensor.clone())
        found[name] = tensor
    return found


def differs_from_timm(model: Any, with_preprocessing: bool, ours: Any) -> str:
    """Return how our model differs from timm's; nothing if it does not."""
    from timm.data import create_transform, resolve_data_config

    if model is None:
        return "it loads, but timm cannot build it with two blocks: no comparison"
    settings = resolve_data_config(pretrained_cfg=model.pretrained_cfg)
    size = tuple(settings["input_size"][1:])
    if ours.config.size != size:
        return f"image size {ours.config.size} instead of {size}"
    image = torch.randn(1, *settings["input_size"], generator=torch.Generator().manual_seed(1))
    ours.blocks = ours.blocks[:2]
    with torch.no_grad():
        if found := output_difference(ours(image), model(image)):
            return found
    if not with_preprocessing:
        return ""
    difference = (ours.card.preprocess(photo()) - create_transform(**settings)(photo())).abs().max().item()
    return "" if difference < 0.03 else f"preprocessing differs by {difference:.2g}"


def cover_architecture(module: str, tags: list[str], forms: tuple[str, ...]) -> list[Outcome]:
    """Try every tag of one architecture; tags that make the same model share one file."""
    from timm.models import get_pretrained_cfg
    from timm.models._hub import save_config_for_hf

    outcomes = []
    alike: dict[str, list[str]] = defaultdict(list)
    for tag in tags:
        settings = get_pretrained_cfg(tag).to_dict()
        alike[str([settings.get(key) for key in ("num_classes", "input_size", "global_pool")])].append(tag)
    for group in alike.values():
        model, whole = build_timm(group[0])
        with in_folder() as folder, LOCK.open("w") as lock:
            if sum(p.numel() for p in whole.parameters()) > LARGE:
                fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
            (folder / "hub").mkdir()
            stored = folder / "hub" / "pytorch_model.bin"
            torch.save(whole_state_dict(model, whole), stored)
            for tag in group:
                for built in (model, whole):
                    if built is not None:
                        built.pretrained_cfg = get_pretrained_cfg(tag).to_dict()
                save_config_for_hf(whole, folder / "hub" / "config.json")
                paths = {"folder": folder / "hub", "bare": folder / "checkpoint.pth", "named": folder / f"{tag}.pth"}
                for form in forms:
                    if form != "folder":
                        os.link(stored, paths[form])
                    result, reason = attempt(paths[form], partial(differs_from_timm, model, form == "folder"))
                    if form != "folder":
                        paths[form].unlink()
                    outcomes.append(Outcome("timm", module, tag, form, result, reason))
    return outcomes


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
        if not {"image_size", "patch_size"} <= set(sizes) or ("text_config" in fields and not is_dual(fields)):
            continue
        stem = config_name.removesuffix("Config")
        for suffix in SUFFIXES:
            owner = getattr(transformers, stem + suffix, None)
            if inspect.isclass(owner) and getattr(owner, "config_class", None) is getattr(transformers, config_name):
                found.append(f"{kind}:{stem}{suffix}")
    return sorted(set(found))


def is_dual(fields: dict[str, Any]) -> bool:
    """Return whether a model with text is an image tower beside a text tower, not a language model that sees."""
    return "projection_dim" in fields or "logit_scale_init_value" in fields


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


def cover(only: str, libraries: list[str], forms: tuple[str, ...], processes: int, memory: int) -> Iterator[Outcome]:
    """Yield the outcomes of every case whose name matches `only`."""
    with ProcessPoolExecutor(processes, initializer=start_worker, initargs=(memory,)) as pool:
        jobs = []
        if "transformers" in libraries:
            names = [name for name in transformers_classes() if re.search(only, name)]
            jobs += [pool.submit(cover_transformers, name, forms) for name in names]
        for module, architectures in timm_tags().items() if "timm" in libraries else ():
            for tags in architectures.values():
                if matching := [tag for tag in tags if re.search(only, tag)]:
                    jobs.append(pool.submit(cover_architecture, module, matching, forms))
        for number, job in enumerate(jobs):
            yield from job.result()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression of the names to try")
    parser.add_argument("--library", nargs="+", default=["timm", "transformers"], choices=["timm", "transformers"])
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--memory", type=int, default=16, help="GiB of address space for each process")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    given = parser.parse_args()
    outcomes = []
    for each in cover(given.only, given.library, tuple(given.forms), given.processes, given.memory):
        outcomes.append(each)
        if given.json:  # as it goes: a whole run takes a while
            given.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1))
    print(*summarise(outcomes), sep="\n")
    sys.exit(any(each.result in ("wrong", "crash") for each in outcomes))


if __name__ == "__main__":
    main()
