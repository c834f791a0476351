"""Scan a torch pickle before anything is built from it: allowed classes only, no tensor larger than its storage.

A pickle is a list of instructions. The scan executes them on placeholders, so that it learns the name of each class the
pickle asks for and the size of each tensor. It raises for a class outside the lists below and for a tensor larger than
its storage.
"""

import _compat_pickle
import math
import pickletools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from vitreous.weights.safety import CheckpointError

OLD_MAGIC = 0x1950A86A20F9469CFC6C  # the number with which files of torch.save began before version 1.6
# The number types a weight may have. Complex, quantised and bit-packed ones are not here.
READABLE = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz),
    *(torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool),
)


class _Unused:
    """Placeholder for anything in a pickle that weights do not need: its content is not kept."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


class Options:
    """Placeholder for a training script's options (`argparse.Namespace`) in a pickle: plain values by name."""

    values: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.values = state


def _plain_dict(*_: object) -> dict[Any, Any]:
    """Stand in for a pickle's defaultdict: a dict without a factory."""
    return {}


# What a pickle may name besides tensors, and the placeholder for it. A placeholder imports, opens, evaluates and calls
# nothing that the file chooses.
DICTS = ("collections.defaultdict", "builtins.dict", "builtins.list", "builtins.int", "builtins.float")  # its factories
UNUSED = (
    *("numpy.dtype", "numpy.ndarray"),  # a random generator's state
    *("numpy.core.multiarray.scalar", "numpy.core.multiarray._reconstruct"),  # a loss or an accuracy
    *("numpy._core.multiarray.scalar", "numpy._core.multiarray._reconstruct"),  # as NumPy 2 calls them
    *("pathlib.PosixPath", "pathlib.WindowsPath"),
    *("pathlib._local.PosixPath", "pathlib._local.WindowsPath"),  # as Python 3.13 calls them
)
PLACEHOLDERS: tuple[tuple[Callable[..., Any], str], ...] = (
    *((_plain_dict, name) for name in DICTS),
    *((_Unused, name) for name in UNUSED),
    (Options, "argparse.Namespace"),
)
# Allowed, and rebuilt by torch itself. `_codecs.encode` is how protocol 2 writes bytes.
HARMLESS = (
    *("collections.OrderedDict", "collections.Counter", "builtins.set"),
    *("torch.Size", "torch.device", "_codecs.encode"),
)
TENSORS = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
PARAMETER = "torch._utils._rebuild_parameter"
CALLABLE = (*(name for _, name in PLACEHOLDERS), *HARMLESS, *TENSORS, PARAMETER)
STORAGES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
    "torch.storage.UntypedStorage": torch.uint8,
}
DTYPES = {str(dtype): dtype for dtype in READABLE}
CONSTANTS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING")
MAX_DIMENSIONS = 32
SAVE_PLAIN = "save dense real ones, e.g. float32"
SAVE_AGAIN = "save the state_dict() with torch.save as it is, or as safetensors"


@dataclass(frozen=True)
class _Global:
    """A class or function that a pickle names."""

    name: str


@dataclass(frozen=True)
class _Storage:
    """A tensor's storage that a pickle names."""

    dtype: torch.dtype
    size: int


class _Object(list[Any]):
    """Placeholder for any object that a pickle makes: its constructor's name, and the items added since."""

    def __init__(self, constructor: str) -> None:
        self.constructor = constructor


class PickleScan:
    """Execute a pickle's instructions on placeholders: find the classes and sizes it asks for, and build nothing.

    >>> import io, pickle
    >>> PickleScan().scan(io.BytesIO(pickle.dumps(["a", "b"], protocol=2)))
    ['a', 'b']
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, int] = {}  # key → bytes that the pickle claims
        self.effort = 0  # items passed to calls: a file can pass one long list to very many

    def scan(self, stream: Any) -> Any:
        """Scan one pickle to its end; the stream then stands behind it."""
        stack = self.stack
        instructions: Iterable[tuple[Any, Any, Any]] = pickletools.genops(stream)
        for opcode, argument, position in instructions:
            match opcode.name:
                case "PROTO":
                    if argument != 2:
                        raise CheckpointError(f"expected pickle protocol 2, got {argument}: {SAVE_AGAIN}")
                case "STOP":
                    break
                case "NONE":
                    stack.append(None)
                case "NEWTRUE" | "NEWFALSE":
                    stack.append(opcode.name == "NEWTRUE")
                case name if name in CONSTANTS:
                    stack.append(argument)
                case "BINPUT" | "LONG_BINPUT":
                    self.memo[argument] = stack[-1]
                case "BINGET" | "LONG_BINGET":
                    stack.append(self.memo[argument])
                case "MARK":
                    self.marks.append(len(stack))
                case "EMPTY_LIST" | "EMPTY_DICT" | "EMPTY_SET":
                    stack.append(_Object(opcode.name))
                case "EMPTY_TUPLE":
                    stack.append(())
                case "TUPLE1" | "TUPLE2" | "TUPLE3":
                    stack.append(self._pop(int(opcode.name[-1])))
                case "TUPLE":
                    stack.append(self._pop_to_mark())
                case "APPEND":
                    self._add_items(self._pop(1))
                case "SETITEM":
                    self._add_items(self._pop(2))
                case "APPENDS" | "SETITEMS":
                    self._add_items(self._pop_to_mark())
                case "GLOBAL":
                    stack.append(_Global(_check_global(argument)))
                case "BINPERSID":
                    stack.append(self._storage(stack.pop()))
                case "REDUCE" | "NEWOBJ":
                    function, arguments = self._pop(2)
                    stack.append(self._call(function, arguments, position))
                case "BUILD":
                    (state,) = self._pop(1)
                    self._set_state(stack[-1], state, position)
                case _:
                    raise CheckpointError(f"uses pickle's {opcode.name}, as torch never does: {SAVE_AGAIN}")
        return stack.pop()

    def _pop(self, count: int) -> tuple[Any, ...]:
        """Pop items off the pickle's stack."""
        if len(self.stack) < count:
            raise IndexError("the pickle pops more than it pushed")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def _pop_to_mark(self) -> tuple[Any, ...]:
        """Pop items off the pickle's stack down to its last mark."""
        mark = self.marks.pop()
        items = tuple(self.stack[mark:])
        del self.stack[mark:]
        return items

    def _add_items(self, items: tuple[Any, ...]) -> None:
        """Add items to the container on top of the pickle's stack."""
        if not isinstance(self.stack[-1], _Object):
            raise TypeError("the pickle adds items to something that is not a container")
        self.stack[-1].extend(items)

    def _spend(self, items: Sequence[Any], position: int) -> None:
        """Raise if a pickle copies its own items too often."""
        self.effort += sum(len(item) for item in items if isinstance(item, list | tuple | str))
        if self.effort > 16 * position + 1024:
            raise CheckpointError("copies its own content over and over: do not trust it")

    def _storage(self, identity: object) -> _Storage:
        """Check a storage that a pickle names."""
        match identity:
            case ("storage", _Global(name), str(key), str(), int(count), *rest) if name in STORAGES:
                storage = _Storage(STORAGES[name], count * STORAGES[name].itemsize)
                known = self.storages.setdefault(key, storage.size)
                if count >= 0 and known == storage.size and not any(rest):
                    return storage
        raise CheckpointError("describes a tensor's storage in a form that torch never writes: fetch it again")

    def _call(self, function: object, arguments: object, position: int) -> _Object:
        """Check a call in a pickle, and return a placeholder for its result."""
        if not isinstance(function, _Global) or function.name not in CALLABLE:
            raise CheckpointError("calls something other than the allowed constructors: do not trust it")
        if not isinstance(arguments, tuple):
            raise TypeError("the pickle calls without arguments")
        self._spend((arguments, *arguments), position)
        if function.name in TENSORS:
            _check_tensor(function.name, *arguments)
        elif function.name == PARAMETER:
            data, _, hooks = arguments
            if getattr(data, "constructor", None) not in TENSORS or not _is_empty_dict(hooks):
                raise TypeError("the pickle makes a parameter from something that is not a tensor")
        elif function.name == "_codecs.encode" and arguments[1:] != ("latin1",):
            raise CheckpointError(f"expected bytes written as latin1, got {arguments[1:]}: do not trust it")
        return _Object(function.name)

    def _set_state(self, target: object, state: object, position: int) -> None:
        """Check the state that a pickle gives to an object."""
        constructor = getattr(target, "constructor", "nothing")
        self._spend((state,), position)
        if constructor == "collections.OrderedDict" and isinstance(state, _Object) and state[::2] == ["_metadata"]:
            return  # nn.Module.state_dict() attaches its version numbers to the dict it returns
        if constructor == "argparse.Namespace" and getattr(state, "constructor", None) == "EMPTY_DICT":
            return
        if not constructor.startswith("numpy."):
            raise CheckpointError(f"sets the inner state of {constructor}, as torch never does: do not trust it")


def _check_global(wanted: str) -> str:
    """Return the dotted name of a class in a pickle if it is allowed."""
    module, _, attribute = wanted.partition(" ")
    # Protocol 2 writes Python 2's names for the standard library: __builtin__ for builtins.
    renamed = (_compat_pickle.IMPORT_MAPPING.get(module, module), attribute)
    name = ".".join(_compat_pickle.NAME_MAPPING.get((module, attribute), renamed))
    if name in CALLABLE or name in STORAGES or name in DTYPES:
        return name
    if name.endswith("Storage") or name.startswith(("torch._utils._rebuild", "torch.complex", "torch.q")):
        raise CheckpointError(f"holds complex, quantised or other special tensors ({name}): {SAVE_PLAIN}")
    advice = "if you trust its maker, save the state_dict() alone, as safetensors"
    raise CheckpointError(f"asks for {name}, which could run code, so nothing was loaded: {advice}")


def _check_tensor(
    constructor: str, storage: _Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *rest: Any
) -> None:
    """Check that a pickle's tensor lies in its storage and does not repeat it: an expanded view can claim terabytes.

    `rest` is what torch's constructors take besides: `requires_grad`, hooks, for `_v3` the dtype, and flags for lazily
    negated or conjugated numbers.
    """
    dtype = DTYPES[rest[2].name] if constructor.endswith("_v3") else storage.dtype
    flags = rest[3:] if constructor.endswith("_v3") else rest[2:]
    if any(flags) or not all(_is_empty_dict(hooks) for hooks in rest[1:2]):
        raise CheckpointError(f"holds a tensor with hooks or with flags of its own: {SAVE_AGAIN}")
    numbers = (offset, *size, *stride)
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or len(size) > MAX_DIMENSIONS:
        raise CheckpointError(f"describes a tensor of impossible shape {size[:8]}: fetch it again")
    steps = sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    count = math.prod(size)
    claimed = max(count, offset + steps + 1) * dtype.itemsize if count else 0
    if claimed > storage.size:
        held = f"{storage.size:,} bytes are there"
        raise CheckpointError(f"a tensor {size} claims {claimed:,} bytes, {held}: do not trust it")


def _is_empty_dict(value: object) -> bool:
    """Return whether a pickle's value is an empty dict."""
    return isinstance(value, _Object) and value.constructor == "collections.OrderedDict" and not value
