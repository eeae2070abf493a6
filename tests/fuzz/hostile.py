"""Files that claim, hide or nest more than they should: every one must be refused, or read right.

Those whose name begins with `good` are unusual, and must be read. Sizes are chosen so that a reader
which believes them takes more than two gigabytes or five seconds.
"""

import gzip
import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

GIGABYTE = 2**30


def zeros(count: int, begin: bytes = b"", wrap: int = 31) -> bytes:
    """Return `begin` and `count` zeros, packed by deflate (31: as gzip, 15: zlib, -15: bare).

    A block that was flushed can be repeated, so that gigabytes are made at once; the checksum at the
    end of many blocks is wrong, which is found only by who has unpacked them all.
    """
    packer, size = zlib.compressobj(9, wbits=wrap), 2**24
    start = packer.compress(begin) + packer.flush(zlib.Z_FULL_FLUSH)
    blocks, rest = divmod(count, size)
    block = packer.compress(bytes(size if blocks else 0)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + block * blocks + packer.compress(bytes(rest)) + packer.flush()


# idx


def idx(*shape: int, body: bytes = b"") -> bytes:
    return b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


IDX = {
    "a bomb that is as large as it claims": lambda: zeros(3 * GIGABYTE, idx(3 * 2**20, 32, 32)),
    "a bomb behind a small claim": lambda: zeros(3 * GIGABYTE, idx(2, 2, 2)),
    "a claim without a body": lambda: gzip.compress(idx(2**31, 2**31, 2**31)),
    "no axes": lambda: gzip.compress(idx()),
    "255 axes": lambda: gzip.compress(idx(*[1] * 255, body=b"x")),
    "an axis of zero": lambda: gzip.compress(idx(0, 2**32 - 1, 2**32 - 1)),
    "not packed": lambda: idx(2, 2, 2, body=bytes(8)),
    "nothing": b"",
    "good, in two members": lambda: gzip.compress(idx(2, 2, 2)) + gzip.compress(bytes(8)),
}

# NumPy


def npy(header: str | dict[str, Any], body: bytes = b"", version: int = 1) -> bytes:
    text = (header if isinstance(header, str) else repr(header)).encode() + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + body


def claim(descr: Any = "<f4", shape: Any = (2, 2), order: Any = False, body: bytes = b"") -> bytes:
    return npy({"descr": descr, "fortran_order": order, "shape": shape}, body)


def saved(x: np.ndarray, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, x, **options)
    return buffer.getvalue()


NPY = {
    "objects": lambda: saved(np.array([[1, "a"]], object), allow_pickle=True),
    "objects within a structure": claim([("a", "|O"), ("b", "<f4")], body=bytes(100)),
    "a claim of terabytes": claim(shape=(2**40, 2), body=bytes(64)),
    "a claim that overflows": claim(shape=(2**63, 2**63)),
    "a shape that is negative": claim(shape=(-1, 4), body=bytes(64)),
    "a shape of floats": claim(shape=(2.0, 2), body=bytes(64)),
    "a shape that is no tuple": claim(shape=4, body=bytes(64)),
    "numbers of no bytes": claim("|V0", (2**40, 2)),
    "text of no bytes": claim("<U0", (2**30, 2)),
    "a structure": claim([("a", "<f4"), ("b", "<i8")], (2, 2), body=bytes(48)),
    "arrays within an array": claim(("<f4", (2**30,)), (2**30, 2), body=bytes(64)),
    "dates": claim("<M8[ns]", (2, 2), body=bytes(32)),
    "complex numbers": claim("<c8", (2, 2), body=bytes(32)),
    "text": claim("<U4", (2, 2), body=bytes(64)),
    "NaN": lambda: saved(np.full((3, 2), np.nan)),
    "a signalling NaN": claim(body=b"\x01\0\x80\x7f" * 4),
    "numbers beyond float32": lambda: saved(np.full((3, 2), 1e300)),
    "one axis": lambda: saved(np.zeros(4)),
    "no axes": lambda: saved(np.float32(1)),
    "70 axes": claim(shape=(1,) * 70, body=bytes(4)),
    "a header of brackets": npy("(" * 9000),
    "a header of unary minus": npy("-" * 9000 + "1"),
    "a header of operators": npy("{'descr': " + "1+" * 4000 + "1}"),
    "a header of millions of characters": npy("(" * 2_000_000, version=2),
    "a header that is cut": npy({"descr": "<f4"})[:20],
    "a header with NUL": npy(
        "{'descr': '<f4\0', 'fortran_order': False, 'shape': (2, 2)}", bytes(16)
    ),
    "keys that are missing": npy({"descr": "<f4"}),
    "a type of types": claim("<f4," * 2000),
    "a type that is no type": claim([[[]]]),
    "a type that does not parse": claim(",f8", body=bytes(32)),
    "a huge integer in the shape": claim(shape="X").replace(b"'X'", b"(" + b"9" * 6000 + b",)"),
    "version 9": b"\x93NUMPY\x09\0" + bytes(100),
    "a pickle": b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.",
    "a zip file by name only": b"PK\3\4" + bytes(100),
    "good, Fortran order": lambda: saved(np.asfortranarray(np.eye(4))),
    "good, big-endian": lambda: saved(np.eye(4).astype(">i2")),
    "good, half precision": lambda: saved(np.eye(4, dtype=np.float16)),
    "good, long double": lambda: saved(np.eye(4, dtype=np.longdouble)),
}


class Archive:
    """A zip file written by hand, so that its entries may lie."""

    def __init__(self) -> None:
        self.body, self.directory, self.count = bytearray(), bytearray(), 0

    def add(
        self,
        name: bytes,
        content: bytes,
        *,
        size: int | None = None,
        method: int = 0,
        flags: int = 0,
        version: int = 20,
        packed: int | None = None,
        offset: int | None = None,
    ) -> "Archive":
        packed = len(content) if packed is None else packed
        size = len(content) if size is None else size
        place = len(self.body) if offset is None else offset
        checksum = zlib.crc32(content) if method == 0 else 0
        rest = struct.pack(
            "<HHHHHIIIHH", version, flags, method, 0, 33, checksum, packed, size, len(name), 0
        )
        if offset is None:
            self.body += b"PK\3\4" + rest + name + content
        more = struct.pack("<HHHII", 0, 0, 0, 0, place)
        self.directory += b"PK\1\2" + struct.pack("<H", 20) + rest + more + name
        self.count += 1
        return self

    def bytes(self, count: int | None = None) -> bytes:
        number = min(self.count if count is None else count, 65535)
        end = struct.pack("<HHHHIIH", 0, 0, number, number, len(self.directory), len(self.body), 0)
        return bytes(self.body + self.directory + b"PK\5\6" + end)


def packed(name: bytes, content: bytes, **options: Any) -> bytes:
    return Archive().add(name, content, **options).bytes()


def many(name: str, content: bytes, count: int) -> bytes:
    """Return an archive with `count` entries that are all the same few bytes."""
    archive = Archive().add(name.encode(), content)
    archive.directory *= count
    archive.count = count
    return archive.bytes()


def zip_of(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


GOOD = saved(np.eye(4))
BOMB = 3 * GIGABYTE


def npz_bomb(name: bytes = b"x.npy", size: int | None = None) -> bytes:
    head = claim("|b1", (BOMB // 1024, 1024))
    return packed(
        name, zeros(BOMB, head, -15), size=len(head) + BOMB if size is None else size, method=8
    )


NPZ = {
    "a bomb": npz_bomb,
    "a bomb that lies about its size": lambda: npz_bomb(size=len(GOOD)),
    "a member that is encrypted": packed(b"x.npy", GOOD, flags=1),
    "a member packed in an unknown way": packed(b"x.npy", GOOD, method=99),
    "a member packed by LZMA": lambda: zip_of({"x.npy": GOOD}, zipfile.ZIP_LZMA),
    "a member that needs a newer unzip": packed(b"x.npy", GOOD, version=90),
    "a member that is cut": packed(b"x.npy", GOOD, size=5000, packed=5000),
    "a member that is nothing": packed(b"x.npy", b""),
    "a member that is elsewhere": packed(b"x.npy", GOOD, offset=2**31),
    "a million members": partial(many, ".npy", GOOD, 10**6),
    "objects": lambda: zip_of({"x.npy": saved(np.array([[1, "a"]], object), allow_pickle=True)}),
    "no array": lambda: zip_of({"x.npy": b"hello"}),
    "names that leave": lambda: zip_of({"../../x.npy": GOOD, "/etc/y.npy": GOOD}),
    "nothing in it": lambda: zip_of({}),
    "an array, not an archive": lambda: saved(np.zeros(3)),
    "good, with a bomb that nobody asks for": lambda: (
        Archive()
        .add(b"x.npy", GOOD)
        .add(b"y.npy", zeros(BOMB, b"", -15), size=BOMB, method=8)
        .bytes()
    ),
}
WEIGHTS = {name: make for name, make in NPZ.items() if not name.startswith("names")}
WEIGHTS |= {"a bomb among others": NPZ["good, with a bomb that nobody asks for"]}
del (
    WEIGHTS["nothing in it"],
    WEIGHTS["good, with a bomb that nobody asks for"],
    WEIGHTS["an array, not an archive"],
)

# CIFAR-10


def tar(*members: tuple[str, bytes, dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content, options in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in options.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _head(name: str, size: int, kind: bytes = b"0") -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def _batches(kind: bytes = b"0", **options: Any) -> list[tuple[str, bytes, dict[str, Any]]]:
    body = bytes(3073) if kind == b"0" else b""
    return [(f"data_batch_{i}.bin", body, {"type": kind, **options}) for i in range(1, 6)]


CIFAR = {
    "a bomb beside the batches": lambda: zeros(6 * GIGABYTE, _head("x", 6 * GIGABYTE)),
    "a bomb in a batch": lambda: zeros(BOMB, _head("data_batch_1.bin", BOMB)),
    "a bomb in a name": lambda: zeros(BOMB, _head("x", BOMB, b"L")),
    "a bomb in a pax header": lambda: zeros(BOMB, _head("x", BOMB, b"x")),
    "a bomb of nothing": lambda: gzip.compress(b"") + zeros(6 * GIGABYTE),
    "300,000 members": lambda: gzip.compress(_head("x", 0) * 300_000, 1),
    "links": lambda: gzip.compress(tar(*_batches(b"2", linkname="/etc/passwd"))),
    "links to themselves": lambda: gzip.compress(
        tar(*(("data_batch_1.bin", b"", {"type": b"1", "linkname": "data_batch_1.bin"}),) * 2)
    ),
    "devices": lambda: gzip.compress(tar(*_batches(b"3"))),
    "folders": lambda: gzip.compress(tar(*_batches(b"5"))),
    "a sparse member": lambda: gzip.compress(_head("data_batch_1.bin", 0, b"S") + bytes(2048)),
    "a pax header of nonsense": lambda: gzip.compress(
        _head("x", 30, b"x") + b"30 GNU.sparse.major=nonsense\n".ljust(512, b"\0") + bytes(1024)
    ),
    "a name that leaves": lambda: gzip.compress(tar(("../../etc/x", b"x", {}))),
    "an xz file": lambda: __import__("lzma").compress(tar(*_batches())),
    "nothing": b"",
    "good": lambda: gzip.compress(tar(*_batches())),
    "good, not packed": lambda: tar(*_batches()),
}

# MATLAB


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def mat_head(name: bytes = b"X", shape: tuple[int, ...] = (4, 4, 3, 2), form: int = 9) -> bytes:
    axes = element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(6, struct.pack("<II", form, 0)) + axes + element(1, name)


MAT_START = b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM"


def mat_packed(head: bytes, count: int, claimed: int | None = None, after: int = 0) -> bytes:
    size = count if claimed is None else claimed
    inner = struct.pack("<II", 14, 0) + head + struct.pack("<II", 2, size)
    body = zeros(count + after, inner, 15)
    return MAT_START + struct.pack("<II", 15, len(body)) + body


MAT = {
    "a bomb": lambda: mat_packed(mat_head(shape=(1024, 1024, 3, 1024)), 3 * GIGABYTE),
    "a bomb after the numbers": lambda: mat_packed(mat_head(), 96, after=GIGABYTE),
    "a claim": lambda: mat_packed(mat_head(shape=(2**15, 2**15, 3, 1)), 96, 3 * 2**30),
    "half a million arrays": MAT_START + element(14, mat_head(b"y" * 8)) * 500_000,
    "long names": MAT_START + element(14, mat_head(b"y" * 60_000)) * 200,
    "axes that are negative": MAT_START
    + element(14, mat_head(shape=(-4, -4, 3, 2)) + element(2, bytes(96))),
    "no axes": MAT_START + element(14, mat_head(shape=()) + element(2, bytes(96))),
    "10,000 axes": MAT_START + element(14, mat_head(shape=(1,) * 10_000) + element(2, b"\0")),
    "version 7.3": b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM",
    "a cell": MAT_START + element(14, mat_head(form=1)),
    "not packed data that says so": MAT_START + element(15, bytes(100)),
    "nothing": b"",
}

# Images


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    width: int,
    height: int,
    *,
    depth: int = 8,
    colour: int = 0,
    body: bytes | None = None,
    more: bytes = b"",
) -> bytes:
    """Return a PNG of zeros, with chunks of one's own before them."""
    row = 1 + (width * depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] + 7) // 8
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = zeros(row * height, wrap=15) if body is None else body
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + more
        + chunk(b"IDAT", data)
        + chunk(b"IEND", b"")
    )


def _picture(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new(mode, options.pop("size", (6, 5))).save(buffer, kind, **options)
    return buffer.getvalue()


def _exif(value: Any) -> bytes:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = value
    return _picture("JPEG", exif=exif)


IMAGES = {
    "50,000 x 50,000 pixels": lambda: png(50_000, 50_000, depth=1),
    "50,000 x 50,000 pixels that are not there": png(
        50_000, 50_000, colour=6, body=zlib.compress(b"")
    ),
    "12,000 x 12,000 pixels": lambda: png(12_000, 12_000, colour=6),
    "2^31 - 1 pixels wide": png(2**31 - 1, 1, body=zlib.compress(b"")),
    "a GIF of 65,535 x 65,535 pixels": b"GIF89a\xff\xff\xff\xff\0\0\0" + bytes(20),
    "a WebP of 16,383 x 16,383 pixels": b"RIFF\x2a\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\xfe\x3f\0\xfe\x3f\0VP8L\x0c\0\0\0\x2f\xfe\xff\xff\x0f"
    + bytes(7),
    "a BMP of no rows": lambda: _picture("BMP")[:22] + bytes(4) + _picture("BMP")[26:],
    "a BMP of 2^31 rows": lambda: _picture("BMP")[:22] + b"\0\0\0\x80" + _picture("BMP")[26:],
    "cut": lambda: _picture("PNG")[:38],
    "cut in the middle of a JPEG": lambda: _picture("JPEG", size=(200, 200))[:700],
    "no pixels": png(0, 0, body=zlib.compress(b"")),
    "32 bits a pixel": lambda: _picture("TIFF", "F"),
    "a text bomb": lambda: png(4, 4, more=chunk(b"zTXt", b"a\0\0" + zeros(GIGABYTE, wrap=15))),
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(touch pwned) system\n",
    "a program": b"\x7fELF" + bytes(100),
    "nothing": b"",
    "good, a JPEG by another suffix": lambda: _picture("JPEG"),
    "good, CMYK": lambda: _picture("JPEG", "CMYK"),
    "good, 16 bits": lambda: _picture("PNG", "I;16"),
    "good, a palette with transparency": lambda: _picture("PNG", "P", transparency=b"\0\x80"),
    "good, an orientation that is none": lambda: _exif(77),
}
_PNG = png(4, 4, colour=2)
ZIP = {
    "a bomb": lambda: packed(b"a.png", zeros(BOMB, _PNG, -15), size=BOMB, method=8),
    "a bomb that lies about its size": lambda: packed(
        b"a.png", zeros(BOMB, b"", -15), size=99, method=8
    ),
    "a member that is encrypted": packed(b"a.png", _PNG, flags=1),
    "a member packed in an unknown way": packed(b"a.png", _PNG, method=99),
    "a member packed by bzip2": lambda: zip_of({"a.png": _PNG}, zipfile.ZIP_BZIP2),
    "a member that needs a newer unzip": packed(b"a.png", _PNG, version=90),
    "a member that is elsewhere": packed(b"a.png", _PNG, offset=2**31),
    "a million members": partial(many, ".png", _PNG, 10**6),
    "a thousand large images": lambda: many(".png", png(8000, 8000), 40),
    "text for an image": lambda: zip_of({"a.png": b"hello"}),
    "a name of control characters": lambda: zip_of({"a\x1b[31m\n.png": b"hello"}),
    "a name of 60,000 characters": lambda: zip_of({"a" * 60_000 + ".png": b"hello"}),
    "no images": lambda: zip_of({"../../etc/passwd": b"x"}),
    "nothing": b"",
    "good, a name that leaves": lambda: zip_of({"../../a.png": _PNG, "/etc/b.png": _PNG}),
    "good, the same name twice": lambda: Archive().add(b"a.png", _PNG).add(b"a.png", _PNG).bytes(),
}

# Parquet


def parquet(**columns: Any) -> bytes:
    import pyarrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    how = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    parquet.write_table(pyarrow.table(columns), buffer, **how)
    return buffer.getvalue()


PARQUET = {
    "a bomb of numbers": lambda: parquet(a=np.zeros(80 * 2**20, bool)),
    "a bomb of lists": lambda: parquet(a=[np.zeros(40 * 2**20, bool)] * 2),
    "an image of 268 MB": lambda: parquet(a=[bytes(2**28 + 1)]),
    "large images": lambda: parquet(a=[png(8000, 8000)] * 40),
    "text for images": lambda: parquet(a=[b"hello"]),
    "names of control characters": lambda: parquet(**{"a\x1b[31m\n": ["x"], "b": ["y"]}),
    "no rows": lambda: parquet(a=np.zeros(0)),
    "no columns": lambda: parquet(),
    "nothing between the ends": b"PAR1" + bytes(4) + b"PAR1",
    "much about itself": b"PAR1" + bytes(100) + struct.pack("<I", 2**31) + b"PAR1",
    "nothing": b"",
    "good, an image": lambda: parquet(a=[_PNG]),
}

# Files of torch


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def tensor(
    key: bytes, size: int = 6, shape: bytes = b"K\6\x85", strides: bytes = b"K\1\x85"
) -> bytes:
    storage = (
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + key + text("cpu") + _int(size) + b"tQ"
    )
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + b"K\0"
        + shape
        + strides
        + b"\x89"
        + b"tR"
    )


def _int(value: int) -> bytes:
    content = value.to_bytes(16, "little", signed=True)
    return b"\x8a\x10" + content


def pickle_of(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def state_dict(keys: Mapping[str, str], size: int = 6, **options: bytes) -> bytes:
    entries = b"".join(
        text(name) + tensor(text(key), size, **options) for name, key in keys.items()
    )
    return pickle_of(b"}(" + entries + b"u")


NESTED = (
    b")" + b"q\0h\0\x86" * 64
)  # a tuple of twice itself, 64 times over: 2^64 when it is printed


def torch_zip(data: bytes, **files: bytes) -> bytes:
    return zip_of(
        {"a/data.pkl": data} | {f"a/data/{k[1:]}": v for k, v in files.items()}, zipfile.ZIP_STORED
    )


def legacy_file(
    state: bytes, keys: tuple[bytes, ...] = (text("0"), text("1")), count: int = 6
) -> bytes:
    magic = pickle_of(b"\x8a\x0a" + 0x1950A86A20F9469CFC6C.to_bytes(10, "little"))
    system = pickle_of(b"}" + text("little_endian") + b"\x88s")
    listed = pickle_of(b"](" + b"".join(keys) + b"e")
    numbers = struct.pack("<q", count) + np.arange(6, dtype=np.float32).tobytes()
    return magic + pickle_of(b"M\xe9\3") + system + state + listed + numbers * len(keys)


def _deep(count: int, name: str) -> bytes:
    return pickle_of(b"}" + (text(name) + b"}") * count + b"s" * count)


_MEGABYTE = bytes(4 * 2**20)
TORCH = {
    "a call of the system": torch_zip(pickle_of(b"cos\nsystem\n(" + text("touch pwned") + b"tR")),
    "a key that is nested": torch_zip(pickle_of(b"}" + text("a") + tensor(NESTED) + b"s")),
    "a shape that is nested": torch_zip(
        pickle_of(b"}" + text("a") + tensor(text("0"), shape=NESTED) + b"s")
    ),
    "a storage that is nested": torch_zip(pickle_of(b"(" + NESTED + NESTED + b"K\1K\1K\1tQ")),
    "names that are nested": torch_zip(_deep(20_000, "a" * 1000)),
    "one storage in 3,000 tensors": lambda: torch_zip(
        state_dict({f"{i}": "0" for i in range(3000)}, 2**20, shape=_int(2**20) + b"\x85"),
        _0=_MEGABYTE,
    ),
    "a storage that is packed": lambda: zip_of(
        {"a/data.pkl": state_dict({"a": "0"}), "a/data/0": bytes(24)}
    ),
    "a storage that is encrypted": Archive()
    .add(b"a/data.pkl", state_dict({"a": "0"}), flags=1)
    .bytes(),
    "a newer unzip": Archive().add(b"a/data.pkl", state_dict({"a": "0"}), version=90).bytes(),
    "a storage too small": torch_zip(state_dict({"a": "0"}, 2**40), _0=bytes(24)),
    "a shape that overflows": torch_zip(
        state_dict({"a": "0"}, shape=_int(2**62) + _int(2**62) + b"\x86", strides=b"K\0K\0\x86"),
        _0=bytes(24),
    ),
    "a stride of nothing": torch_zip(
        state_dict({"a": "0"}, shape=_int(2**31) + b"\x85", strides=b"K\0\x85"), _0=bytes(24)
    ),
    "a million members": partial(many, "x", b"", 10**6),
    "two million opcodes": lambda: torch_zip(pickle_of(b"}" * 2_000_000)),
    "no end": torch_zip(b"\x80\x02}"),
    "nothing": b"",
}
LEGACY = {
    "a call of the system": legacy_file(pickle_of(b"cos\nsystem\n(" + text("touch pwned") + b"tR")),
    "a key that is nested": legacy_file(pickle_of(b"}" + text("a") + tensor(NESTED) + b"s")),
    "a list of keys that is nested": legacy_file(state_dict({"a": "0"}), (NESTED,)),
    "a count of 2^62": legacy_file(state_dict({"a": "0"}, 2**62), count=2**62),
    "a count of -1": legacy_file(state_dict({"a": "0"}, -1), count=-1),
    "a system that is a list": legacy_file(state_dict({"a": "0"})).replace(
        b"}" + text("little_endian") + b"\x88s", b"]"
    ),
    "a line without end": lambda: b"c" + b"x" * 20_000_000,
    "an integer of 255 bytes": b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".",
}

# Model files


def header_of(data: bytes) -> dict[str, Any]:
    return json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])


def with_header(data: bytes, header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data[8 + struct.unpack("<Q", data[:8])[0] :]


def _model(name: str = "kan") -> bytes:
    from pathlib import Path

    return (Path(__file__).parent / "seeds" / f"{name}.safetensors").read_bytes()


def changed(
    change: Callable[[dict[str, Any], dict[str, Any]], Any], name: str = "kan"
) -> Callable[[], bytes]:
    """Return what makes a model file after `change(header, structure)`."""

    def make() -> bytes:
        data = _model(name)
        header = header_of(data)
        structure = json.loads(header["__metadata__"]["structure"])
        structure = change(header, structure) or structure
        header["__metadata__"]["structure"] = (
            structure if isinstance(structure, str) else json.dumps(structure)
        )
        return with_header(data, json.dumps(header).encode())

    return make


def setting(value: Any, *path: str, name: str = "kan") -> Callable[[], bytes]:
    """Return what makes a model file with another plain value at `path`."""

    def change(header: dict[str, Any], structure: dict[str, Any]) -> None:
        for part in path[:-1]:
            structure = structure["fields"][part]
        structure["fields"][path[-1]] = value

    return changed(change, name)


def tensors(header: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for name, entry in header.items() if name != "__metadata__"]


def _first(**entries: Any) -> Callable[[], bytes]:
    return changed(lambda header, structure: tensors(header)[0].update(entries))


def _shared(header: dict[str, Any], structure: dict[str, Any]) -> dict[str, Any]:
    array = next(name for name in header if name != "__metadata__")
    return {"tuple": [{"array": array}] * 300_000}


def _plain(value: Any) -> dict[str, Any]:
    return {"value": value}


MODEL = {
    "a header of 100 MB": lambda: (
        struct.pack("<Q", 99_000_000) + b'{"__metadata__":{"a":"' + b"x" * 98_999_975 + b'"}}'
    ),
    "a header of lists": changed(lambda header, structure: "[" + "[]," * 10_000_000 + "[]]"),
    "a header of brackets": changed(lambda header, structure: "[" * 1_000_000),
    "a header of 300,000 arrays": changed(
        lambda header, structure: header.update(
            {
                f"x{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
                for i in range(300_000)
            }
        )
    ),
    "a header longer than the file": b"\xff" * 8 + b"{}",
    "a shape that overflows": _first(shape=[2**62, 2**62]),
    "offsets beyond the end": _first(data_offsets=[0, 2**60]),
    "offsets that overlap": changed(
        lambda header, structure: tensors(header)[0].update(tensors(header)[1])
    ),
    "a type that is no type": _first(dtype="O"),
    "BF16": _first(dtype="BF16"),
    "integers": _first(dtype="I32"),
    "one array 300,000 times": changed(_shared),
    "a class that is unknown": changed(
        lambda header, structure: structure.update({"class": "os.system"})
    ),
    "a class that is a number": changed(lambda header, structure: structure.update({"class": 5})),
    "a whole model that is a number": changed(lambda header, structure: {"value": 1}),
    "a structure that is a list": changed(lambda header, structure: "[]"),
    "a number of 100,000 digits": changed(
        lambda header, structure: '{"value": ' + "9" * 100_000 + "}"
    ),
    "noise that is NaN": setting(_plain(float("nan")), "noise"),
    "noise that is infinite": setting(_plain(float("inf")), "noise"),
    "a data shape of billions": setting(
        {"tuple": [_plain(2**20), _plain(2**20), _plain(1)]}, "generator", "data_shape"
    ),
    "a data shape of text": setting({"tuple": [_plain("x")]}, "generator", "data_shape"),
    "a prior's shape of billions": setting(
        {"tuple": [_plain(2**31), _plain(2**31)]}, "prior", "shape"
    ),
    "an infinite mean": setting(_plain(float("inf")), "prior", "cells"),
    "a lens of billions": setting(
        {"tuple": [_plain(2**17), _plain(2**17), _plain(3)]}, "lens", "data_shape", name="encoder"
    ),
    "a chain of 2^40 steps": setting(_plain(2**40), "prior", "steps", name="neural"),
    "a chain of steps that are none": setting(_plain(-1), "prior", "steps", name="neural"),
    "a chain with steps of NaN": setting(_plain(float("nan")), "prior", "step_size", name="neural"),
    "pickle": b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.",
    "nothing": b"",
}

# Settings

TOML = {
    "deep": b"x = " + b"[" * 100_000,
    "deep tables": b"[" + b"a." * 50_000 + b"a]\n",
    "a number of 5,000 digits": b"[training]\nsteps = " + b"9" * 5000,
    "a number of 5,000 digits in hexadecimal": b"[training]\nsteps = 0x" + b"f" * 5000,
    "hexadecimal for text": b"[prior]\nbasis = 0x" + b"f" * 5000,
    "hexadecimal for a table": b"prior = 0x" + b"f" * 5000,
    "hexadecimal for a rate": b"[model]\nnoise = 0x" + b"f" * 5000,
    "hexadecimal in a list": b"[generator]\nwidths = [0x" + b"f" * 5000 + b"]",
    "hexadecimal for a kind": b"[prior]\nkind = 0x" + b"f" * 5000,
    "NaN": b"[model]\nnoise = nan",
    "a date": b"[training]\nsteps = 1979-05-27",
    "UTF-16": "[training]\nsteps = 5".encode("utf-16"),
    "latin-1": "[data]\nname = 'é'".encode("latin-1"),
    "NUL": b"[training]\nsteps = 5\0",
    "a long text": b"[training]\nsteps = '" + b"x" * 1_000_000 + b"'",
    "a long name": b"[training]\n" + b"x" * 1_000_000 + b" = 1",
    "a long section": b"[" + b"x" * 1_000_000 + b"]",
    "a long kind": b"[prior]\nkind = '" + b"x" * 1_000_000 + b"'",
    "20 megabytes": lambda: b"# " + b"x" * 20_000_000,
    "a list for a table": b"prior = [1]",
    "a table for a number": b"[training.steps]\na = 1",
    "a table for a kind": b"[prior.kind]\na = 1",
}
JSON = {
    "deep": b"[" * 200_000,
    "deep tables": b'{"a":' * 100_000,
    "a list": b"[1]",
    "a number": b"1",
    "a number of 5,000 digits": b'{"training": {"steps": ' + b"9" * 5000 + b"}}",
    "a number that is infinite": b'{"settings": {"model": {"noise": 1e999}}}',
    "NaN": b'{"settings": {"model": {"noise": NaN}}}',
    "UTF-16": '{"settings": {}}'.encode("utf-16"),
    "NUL": b'{"settings": \0{}}',
    "lists by the million": lambda: b'{"what": [' + b"[]," * 12_000_000 + b"[]]}",
    "nothing": b"",
}
RECORD = {
    "settings that are a list": b'{"what": "x", "settings": [], "data": {}}',
    "settings that are no tables": b'{"what": "x", "settings": {"prior": 1}, "data": {}}',
    "data that say nothing": b'{"what": "x", "settings": {}, "data": {}}',
}
HISTORY = {
    "deep": b"[" * 200_000 + b'\n{"step": 1}\n',
    "a step of text": b'{"step": "x"}\n{"step": 1}\n',
    "a step of 5,000 digits": b'{"step": ' + b"9" * 5000 + b'}\n{"step": 1}\n',
    "a list": b'[1]\n{"step": 1}\n',
    "lists by the million": lambda: b'{"step": [' + b"[]," * 12_000_000 + b']}\n{"step": 1}\n',
    "good, cut": b'{"step": 1}\n{"st',
    "good, NaN": b'{"step": 1, "loss": NaN}\n',
}
METRICS = JSON | {
    "details that are a list": b'{"details": [1]}',
    "a value that is text": b'{"details": {"fid": {"value": "x"}}}',
    "an error that is a list": b'{"details": {"fid": {"value": 1, "error": []}}}',
    "an entry that is a number": b'{"details": {"fid": 1}}',
    "NaN": b'{"details": {"fid": {"value": NaN}}}',
    "a number that is infinite": b'{"details": {"fid": {"value": 1e999}}}',
}
