"""Arrays of files that torch wrote, without torch and without running what a file says.

Three formats hold a pickle that describes tensors, and their numbers beside it:

- zip archives of `torch.save` (since 1.6) and of TorchScript: `*/data.pkl`, numbers in `*/data/KEY`;
- files of `torch.save` before: five pickles, then each storage as a count and its numbers.

A pickle is a program. It is read here by a small interpreter of its opcodes that builds inert
records: it calls nothing, imports nothing, and stops at whatever a file of tensors does not need.
"""

import io
import math
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...data.archives import DAMAGE, open_zip, unpacked
from ...errors import UserError

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_STORAGES = {
    "torch.DoubleStorage": "<f8",
    "torch.FloatStorage": "<f4",
    "torch.HalfStorage": "<f2",
    "torch.LongStorage": "<i8",
    "torch.IntStorage": "<i4",
    "torch.ShortStorage": "<i2",
    "torch.CharStorage": "<i1",
    "torch.ByteStorage": "<u1",
    "torch.BoolStorage": "?",
}
_TENSOR = "torch._utils._rebuild_tensor_v2"
_DICTIONARY = "collections.OrderedDict"
_LISTS = {f"torch.jit._pickle.build_{kind}list" for kind in ("int", "double", "bool", "tensor")}
_MODULES = "__torch__."  # TorchScript's classes: their attributes are all that is kept
# Inception's files have 100 MB, and 20,000 opcodes.
MOST_BYTES, _MOST_OPCODES, _MOST_NAME = 2**29, 2**20, 1000
_LITERALS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
# The opcodes that files of tensors need: byte, name, and the struct format of what follows; for
# strings and long integers, of their length.
_OPCODES = {
    byte[0]: (name, layout)
    for byte, name, layout in (
        *(
            (b"\x80", "PROTO", "<B"),
            (b"\x95", "FRAME", "<Q"),
            (b".", "STOP", ""),
            (b"(", "MARK", ""),
        ),
        *((b"X", "BINUNICODE", "<I"), (b"\x8c", "SHORT_BINUNICODE", "<B")),
        *((b"T", "BINSTRING", "<i"), (b"U", "SHORT_BINSTRING", "<B"), (b"\x8a", "LONG1", "<B")),
        *((b"J", "BININT", "<i"), (b"K", "BININT1", "<B"), (b"M", "BININT2", "<H")),
        *((b"G", "BINFLOAT", ">d"), (b"N", "NONE", "")),
        *((b"\x88", "NEWTRUE", ""), (b"\x89", "NEWFALSE", "")),
        *((b"}", "EMPTY_DICT", ""), (b"]", "EMPTY_LIST", ""), (b")", "EMPTY_TUPLE", "")),
        *((b"t", "TUPLE", ""), (b"\x85", "TUPLE1", ""), (b"\x86", "TUPLE2", "")),
        *((b"\x87", "TUPLE3", ""), (b"a", "APPEND", ""), (b"e", "APPENDS", "")),
        *((b"s", "SETITEM", ""), (b"u", "SETITEMS", ""), (b"\x94", "MEMOIZE", "")),
        *((b"q", "BINPUT", "<B"), (b"r", "LONG_BINPUT", "<I")),
        *((b"h", "BINGET", "<B"), (b"j", "LONG_BINGET", "<I")),
        *((b"c", "GLOBAL", ""), (b"Q", "BINPERSID", ""), (b"b", "BUILD", "")),
        *((b"R", "REDUCE", ""), (b"\x81", "NEWOBJ", "")),
    )
}
_VALUES = {
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINSTRING",
    "SHORT_BINSTRING",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "BINFLOAT",
}


@dataclass(frozen=True)
class _Name:
    """What a pickle would import."""

    name: str


@dataclass(frozen=True)
class _Storage:
    dtype: np.dtype
    key: str
    size: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass
class _Module:
    attributes: dict[Any, Any] = field(default_factory=dict)


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a `.pt` or `.pth` file by name; those of submodules as `module.name`."""
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise ValueError(
                f"it has {size / 1e6:,.0f} MB, expected at most {MOST_BYTES / 1e6:,.0f}"
            )
        with open(path, "rb") as file:
            if file.read(4) == b"PK\3\4":
                return _read_zip(path)
            file.seek(0)
            # Whole: of a file on disk, as many bytes are allocated as a damaged length asks for.
            return _read_legacy(io.BytesIO(file.read()))
    except (*DAMAGE, IndexError, AttributeError, MemoryError) as error:
        ours = isinstance(error, OSError | zipfile.BadZipFile) or type(error) is ValueError
        reason = error if ours else "what it holds does not parse"
        raise UserError(
            f"{path} is not a readable torch file of tensors: {reason}. Expected a state dict saved "
            "with torch.save, or a TorchScript archive; it may be truncated or another format: get it "
            "again."
        ) from error


def _read_zip(path: Path) -> dict[str, np.ndarray]:
    with open_zip(path) as archive:
        found = [name for name in archive.namelist() if name.split("/")[1:] == ["data.pkl"]]
        if len(found) != 1:
            raise ValueError("the archive has no data.pkl")
        top = found[0].removesuffix("data.pkl")
        sizes: list[int] = []

        @cache  # once, however many tensors share it
        def content(name: str) -> bytes:
            member = archive.getinfo(top + name)
            # torch does not compress these: what is read is then never larger than the file.
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{member.filename[:80]} is compressed")
            sizes.append(member.file_size)
            if sum(sizes) > MOST_BYTES:
                raise ValueError("its storages overlap")
            return unpacked(archive, member)

        if f"{top}byteorder" in archive.namelist() and content("byteorder") != b"little":
            raise ValueError("its numbers are not little-endian")
        tree = _interpret(io.BytesIO(content("data.pkl")))
        return _arrays(tree, lambda storage: content(f"data/{storage.key}"))


def _read_legacy(file: BinaryIO) -> dict[str, np.ndarray]:
    if _interpret(file) != _MAGIC or _interpret(file) != _PROTOCOL:
        raise ValueError("it is neither a zip archive nor a file of torch.save")
    system, tree, keys = _interpret(file), _interpret(file), _interpret(file)
    if not system["little_endian"]:
        raise ValueError("its numbers are not little-endian")
    sizes = {tensor.storage.key: tensor.storage for _, tensor in _tensors(tree)}
    content: dict[str, bytes] = {}
    for key in keys:
        (count,) = struct.unpack("<q", file.read(8))
        if not isinstance(key, str) or key not in sizes or count != sizes[key].size:
            raise ValueError(f"a storage has {count} numbers, and its tensor another number")
        content[key] = file.read(count * sizes[key].dtype.itemsize)
    return _arrays(tree, lambda storage: content[storage.key])


def _exactly(file: BinaryIO, count: int) -> bytes:
    found = file.read(count) if count >= 0 else b""
    if len(found) != count:
        raise ValueError("its pickle has no end")
    return found


def _opcodes(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Names and arguments of the opcodes of a pickle, as far as they are asked for."""
    while True:
        byte = _exactly(file, 1)
        if byte[0] not in _OPCODES:
            raise ValueError(f"it has the pickle opcode {byte!r}, which no tensors need")
        name, layout = _OPCODES[byte[0]]
        argument: Any = None
        if layout:
            (argument,) = struct.unpack(layout, _exactly(file, struct.calcsize(layout)))
        if name.endswith("UNICODE"):
            argument = _exactly(file, argument).decode()
        elif name.endswith("STRING"):
            argument = _exactly(file, argument).decode("latin-1")
        elif name == "LONG1":
            argument = int.from_bytes(_exactly(file, argument), "little", signed=True)
        elif name == "GLOBAL":
            argument = ".".join(file.readline().decode().rstrip("\n") for _ in range(2))
        yield name, argument


def _interpret(file: BinaryIO) -> Any:
    """What one pickle of `file` describes, as plain values and the records above."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for number, (opcode, argument) in enumerate(_opcodes(file)):
        if number > _MOST_OPCODES:
            raise ValueError(f"its pickle has more than {_MOST_OPCODES:,} opcodes")
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack.pop()
            case "MARK":
                marks.append(len(stack))
            case name if name in _VALUES:
                stack.append(argument)
            case name if name in _LITERALS:
                stack.append(_LITERALS[name])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                start = len(stack) - int(name[-1])
                stack[start:] = [tuple(stack[start:])]
            case "APPEND":
                value = stack.pop()
                stack[-1].append(value)
            case "APPENDS":
                items = since_mark()
                stack[-1].extend(items)
            case "SETITEM":
                items = [stack.pop(), stack.pop()][::-1]
                _set(stack[-1], items)
            case "SETITEMS":
                items = since_mark()
                _set(stack[-1], items)
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(_Name(argument))
            case "BINPERSID":
                stack.append(_storage(*stack.pop()))
            case "REDUCE" | "NEWOBJ":
                arguments, what = stack.pop(), stack.pop()
                stack.append(_made(what, arguments))
            case "BUILD":
                state = stack.pop()
                if isinstance(stack[-1], _Module) and isinstance(state, dict):
                    stack[-1].attributes.update(state)
                elif not isinstance(stack[-1], dict):  # a state dict's state is its versions
                    raise ValueError(f"it sets the state of a {type(stack[-1]).__name__}")
    raise AssertionError("a pickle ends with STOP, or with an error")


def _set(mapping: dict[str | int, Any], items: list[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | int):
            raise ValueError(f"it has a key that is a {type(key).__name__}; expected names")
        mapping[key] = value


def _made(what: Any, arguments: Any) -> Any:
    """A record in place of the object that a pickle would construct."""
    name = what.name if isinstance(what, _Name) else type(what).__name__
    if name == _TENSOR:
        storage, offset, shape, strides, *_ = arguments
        return _Tensor(storage, offset, shape, strides)
    if name == _DICTIONARY and arguments == ():
        return {}
    if name in _LISTS:
        return arguments
    if name.startswith(_MODULES) and arguments == ():
        return _Module()
    raise ValueError(f"it calls {name[:80]}, which is refused: a file of weights has tensors only")


def _storage(kind: Any, storage: Any, key: Any, place: Any, size: Any, *_: Any) -> _Storage:
    # None of these is printed or compared before it is known to be plain: a tuple of tuples that are
    # one another, a hundred deep, has no end.
    if kind != "storage" or not isinstance(storage, _Name) or storage.name not in _STORAGES:
        raise ValueError("it has a storage of another type; expected real numbers or integers")
    if not isinstance(key, str) or type(size) is not int:
        raise ValueError("it has a storage without a name or a size")
    return _Storage(np.dtype(_STORAGES[storage.name]), key, size)


def _tensors(tree: Any) -> Iterator[tuple[str, _Tensor]]:
    """Tensors with their names. A container is entered once: shared ones could be nested without end."""
    waiting, entered = [("", tree)], set()
    while waiting:
        prefix, node = waiting.pop()
        if isinstance(node, _Tensor):
            yield prefix.removesuffix("."), node
        node = node.attributes if isinstance(node, _Module) else node
        if isinstance(node, dict) and id(node) not in entered:
            entered.add(id(node))
            if len(prefix) > _MOST_NAME:
                raise ValueError(f"a name in it has more than {_MOST_NAME} characters")
            waiting += [(f"{prefix}{name}.", child) for name, child in reversed(node.items())]


def _arrays(tree: Any, stored: Callable[[_Storage], bytes]) -> dict[str, np.ndarray]:
    found, total = {}, 0
    for name, tensor in _tensors(tree):
        found[name] = _array(name, tensor, stored)
        total += found[name].nbytes
        if total > MOST_BYTES:
            raise ValueError("its tensors overlap")
    if not found:
        raise ValueError("it holds no named tensors")
    return found


def _array(name: str, tensor: _Tensor, stored: Callable[[_Storage], bytes]) -> np.ndarray:
    shape, strides, offset = tensor.shape, tensor.strides, tensor.offset
    if not all(type(n) is int for n in (offset, *shape, *strides)):
        raise ValueError(f"{name} has a shape or strides that are not whole numbers")
    content, dtype, size = stored(tensor.storage), tensor.storage.dtype, tensor.storage.size
    if len(content) != size * dtype.itemsize:
        raise ValueError(f"{name} has {len(content)} bytes, expected {size * dtype.itemsize}")
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if min(offset, *shape, *strides, 0) < 0 or max(last, math.prod(shape) - 1) >= size:
        raise ValueError(f"{name} reaches beyond its {size} numbers")
    numbers = np.frombuffer(content, dtype)[offset:]
    steps = [step * dtype.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(numbers, shape, steps).copy()
