"""Find tests that cannot fail: make small changes to a module and run the module's tests against each.

python benchmarks/mutants.py models/vit.py inside/rollout.py --count 20

A mutant flips a comparison, swaps + and -, drops a `not`, exchanges 0 and 1, returns None, or omits a statement.
One that no test detects is a survivor: a gap in the tests, or a change without effect. All of it happens in a
temporary copy. Each run of the tests is a fork of one process that has imported torch, so it needs Linux or macOS.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MORE_TESTS = {  # besides `tests/FOLDER/test_NAME.py`
    "weights/keymap.py": ("tests/weights/formats/test_timm.py", "tests/weights/formats/test_huggingface.py"),
    "speed/backends.py": ("tests/speed/test_optimize.py",),
    "comparison/runs.py": ("tests/comparison/test_study.py",),
    "training/loop.py": ("tests/training/test_loop_errors.py",),
    "models/vit.py": ("tests/models/test_tokens.py",),
}
LOADED_FIRST = ("numpy", "torch", "torchvision", "hypothesis", "PIL.Image", "timm", "transformers", "pytest")
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
REMOVED = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise)


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    kind: str
    line: int
    change: str
    source: str


# --- changes ----------------------------------------------------------------------------------------------------------


def mutants(source: str) -> list[Mutant]:
    """Every change to the insides of a module's functions; messages of errors and f-strings are left alone.

    >>> [each.change for each in mutants("def f(a):\\n    return a < 1")]
    ['return a < 1 → return None', 'a < 1 → a >= 1', '1 → 0']
    """
    tree = ast.parse(source)
    found = []
    for parent, name, index, node in list(_nodes(tree)):
        for kind, new in _changes(node):
            _put(parent, name, index, new)
            replacement = "nothing" if isinstance(new, ast.Pass) else ast.unparse(new)
            change = " ".join(f"{ast.unparse(node)} → {replacement}".split())
            found.append(Mutant(kind, node.lineno, change, ast.unparse(tree)))
            _put(parent, name, index, node)
    return found


def _nodes(tree: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, str, int | None, ast.expr | ast.stmt]]:
    """Yield the nodes within functions: parent, field, index in the field, node."""
    for name, value in ast.iter_fields(tree):
        if name in ("decorator_list", "annotation", "returns", "args") and not isinstance(tree, ast.Call | ast.Lambda):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr):
                continue
            if inside and isinstance(node, ast.expr | ast.stmt):
                yield tree, name, index, node
            if not isinstance(node, ast.Raise | ast.Assert):
                yield from _nodes(node, inside or isinstance(node, ast.FunctionDef))


def _put(parent: ast.AST, name: str, index: int | None, new: ast.AST) -> None:
    if index is None:
        setattr(parent, name, new)
    else:
        getattr(parent, name)[index] = new


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What a node may become."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare):
        new.ops[0] = OPPOSITE[type(new.ops[0])]()
        yield "comparison", new
    elif isinstance(new, ast.BinOp) and isinstance(new.op, ast.Add | ast.Sub) and not _text(new):
        new.op = ast.Sub() if isinstance(new.op, ast.Add) else ast.Add()
        yield "sum", new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not):
        yield "not", new.operand
    elif isinstance(new, ast.Constant) and type(new.value) is int and new.value in (0, 1):
        new.value = 1 - new.value
        yield "constant", new
    elif isinstance(new, ast.Return) and new.value is not None and not _is_none(new.value):
        new.value = ast.Constant(None)
        yield "return", new
    elif isinstance(new, REMOVED) and not (isinstance(new, ast.Expr) and isinstance(new.value, ast.Constant)):
        yield "statement", ast.Pass()


def _text(node: ast.BinOp) -> bool:
    """Whether a sum is one of words or lists, which has no difference: such a change would only fail to run."""
    words = ast.JoinedStr | ast.List | ast.Tuple
    parts = (node.left, node.right)
    return any(isinstance(p, words) or (isinstance(p, ast.Constant) and isinstance(p.value, str)) for p in parts)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


# --- running ----------------------------------------------------------------------------------------------------------


def own_tests(module: str) -> list[str]:
    """A module's own test files and the examples in its docstrings."""
    folder, _, name = module.rpartition("/")
    own = str(Path("tests") / folder / f"test_{name}")
    found = [path for path in (own, *MORE_TESTS.get(module, ())) if (ROOT / path).is_file()]
    if not found:
        raise ValueError(f"{module} has no {own}: name its tests in MORE_TESTS")
    return [*found, f"src/vitreous/{module}"]


def passes(copied: Path, tests: list[str], seconds: float, quiet: bool = True) -> bool | None:
    """Whether the tests pass in the copy; None where they took too long."""
    child = os.fork()
    if not child:
        os.setsid()
        os._exit(_run(copied, tests, quiet))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # its own children too
    os.waitpid(child, 0)
    return None


def _run(copied: Path, tests: list[str], quiet: bool) -> int:
    try:
        if quiet:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
        os.chdir(copied)
        sys.dont_write_bytecode = True  # two mutants of one second and size would share their bytecode
        sys.path[:0] = [str(copied / "src"), str(copied / "tests"), str(copied / "tests/support")]
        os.environ["PYTHONPATH"] = str(copied / "src")
        import pytest

        flags = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header"]
        code = int(pytest.main([*flags, *tests]))
        import vitreous

        return code if Path(vitreous.__file__).is_relative_to(copied) else 99
    except BaseException:
        return 98


def try_module(copied: Path, module: str, count: int, seed: int, left: Callable[[], float]) -> tuple[int, int, int]:
    """Run a sample of a module's mutants and print the survivors: how many were tried, killed, survived."""
    path, tests = copied / "src/vitreous" / module, own_tests(module)
    source = path.read_text(encoding="utf-8")
    begun = time.monotonic()
    if not passes(copied, tests, 300.0):
        raise RuntimeError(f"{module}: {' '.join(tests)} do not pass without any change")
    usual = time.monotonic() - begun
    everything = mutants(source)
    chosen = random.Random(seed).sample(everything, min(count, len(everything)))
    tried = killed = survived = 0
    print(f"{module}: {len(everything)} possible, tests take {usual:.1f} s")
    for mutant in sorted(chosen, key=lambda each: each.line):
        if left() <= 0:
            break
        path.write_text(mutant.source, encoding="utf-8")
        passed = passes(copied, tests, 3 * usual + 10)
        tried, killed, survived = tried + 1, killed + (not passed), survived + bool(passed)
        if passed is None:
            print(f"  over its time, counted as killed  {module}:{mutant.line}  {mutant.change}", flush=True)
        if passed:
            print(f"  survived  {module}:{mutant.line}  {mutant.kind}  {mutant.change}", flush=True)
    path.write_text(source, encoding="utf-8")
    print(f"  {tried} tried, {killed} killed, {survived} survived", flush=True)
    return tried, killed, survived


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", help="such as models/vit.py")
    parser.add_argument("--count", type=int, default=20, help="mutants of each module, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=900.0, help="for all of it; what is left out is not counted")
    asked = parser.parse_args()
    for name in LOADED_FIRST:
        with suppress(ImportError):
            import_module(name)
    end = time.monotonic() + asked.seconds
    totals = [0, 0, 0]
    with tempfile.TemporaryDirectory(prefix="vitreous-mutants-") as folder:
        copied = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__", ".git")
        for name in ("src", "tests", "docs", "benchmarks", "examples"):
            shutil.copytree(ROOT / name, copied / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", copied)
        for module in asked.modules:
            if time.monotonic() < end:
                found = try_module(copied, module, asked.count, asked.seed, lambda: end - time.monotonic())
                totals = [total + new for total, new in zip(totals, found, strict=True)]
    print(f"together: {totals[0]} tried, {totals[1]} killed, {totals[2]} survived")


if __name__ == "__main__":
    main()
