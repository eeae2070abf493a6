"""Every reader of files, with good files to mutate and hostile ones that it must refuse."""

import gzip
import io
import json
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from . import hostile
from .mutation import mutated, mutated_json

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures" / "v01"
Makers = Mapping[str, Callable[[], bytes] | bytes]


@dataclass(frozen=True, eq=False)
class Target:
    """A reader: what it opens (`file`, a path in a folder), from which seeds, and what it must refuse.

    `inside` takes out of a good file what damage cannot reach without breaking its checksum or length
    (what is packed, a header), and puts it back. With `is_json`, that (or the file) is JSON.
    """

    name: str
    file: str
    open: Callable[[Path], Any]
    make: Callable[[], list[bytes]]
    hostile: Makers = field(default_factory=dict)
    tokens: tuple[bytes, ...] = ()
    inside: tuple[Callable[[bytes], bytes], Callable[[bytes, bytes], bytes]] | None = None
    is_json: bool = False

    @cached_property
    def _seeds(self) -> list[bytes]:
        return self.make()

    def seeds(self) -> list[bytes]:
        """Return good files, small ones."""
        return self._seeds

    def case(self, rng: random.Random) -> bytes:
        """Return a damaged file."""
        seeds = self.seeds()
        data = rng.choice(seeds)
        if self.inside is None or rng.random() < 0.3:
            if self.is_json and self.inside is None and rng.random() < 0.7:
                return mutated_json(data, rng)
            return mutated(data, seeds, self.tokens, rng)
        unpack, pack = self.inside
        inner = unpack(data)
        if self.is_json and rng.random() < 0.9:
            return pack(data, mutated_json(inner, rng))
        return pack(data, mutated(inner, [unpack(seed) for seed in seeds], self.tokens, rng))


def _load_data(path: Path) -> Any:
    from kaem.data import load

    return load(str(path))


def _pixels(n: int = 3, size: int = 6, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, size, size, channels), np.uint8)


def _idx() -> list[bytes]:
    x = _pixels(4, 5, 1)[..., 0]
    return [gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", *x.shape) + x.tobytes(), mtime=0)]


def npy(x: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, x)
    return buffer.getvalue()


def _npy() -> list[bytes]:
    x = _pixels(3, 4, 1)
    floats = np.linspace(0, 1, 12).reshape(4, 3)
    return [npy(x), npy(floats.astype(">f4")), npy(np.asfortranarray(floats)), npy(floats > 0.5)]


def _npz() -> list[bytes]:
    files = []
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, x=_pixels(3, 4, 1), y=np.arange(3))
        files.append(buffer.getvalue())
    return files


def _member(name: str) -> tuple[Callable[[bytes], bytes], Callable[[bytes, bytes], bytes]]:
    """What is in a zip file under `name`, and the archive with something else in its place."""

    def unpack(data: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.read(name)

    def pack(data: bytes, inner: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
            for member in old.infolist():
                new.writestr(member, inner if member.filename == name else old.read(member))
        return buffer.getvalue()

    return unpack, pack


_GZIPPED = (gzip.decompress, lambda data, inner: gzip.compress(inner, 1, mtime=0))


def _cifar() -> list[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "readme.html"):
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = 3073
            archive.addfile(info, io.BytesIO(bytes(3073)))
    return [gzip.compress(buffer.getvalue(), mtime=0)]


def _mat() -> list[bytes]:
    from scipy.io import savemat

    files = []
    for packed in (False, True):
        buffer = io.BytesIO()
        arrays = {"y": np.arange(3.0), "X": _pixels(3, 4).transpose(1, 2, 3, 0)}
        savemat(buffer, arrays, do_compression=packed)
        files.append(buffer.getvalue())
    return files


def picture(kind: str, mode: str = "RGB", size: tuple[int, int] = (6, 5), **options: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    x = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(x).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def _images() -> list[bytes]:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    animated = {"save_all": True, "append_images": [Image.new("RGB", (6, 5), "red")] * 2}
    return [
        *(picture("PNG", mode) for mode in ("RGB", "L", "LA", "RGBA", "1", "I;16")),
        picture("PNG", "P", transparency=b"\0\x80\xff"),
        *(picture("JPEG"), picture("JPEG", "CMYK"), picture("JPEG", exif=exif)),
        *(picture("GIF", **animated), picture("WEBP", **animated), picture("WEBP", lossless=True)),
        *(picture("BMP"), picture("BMP", "P"), picture("TIFF", compression="tiff_lzw")),
        *(picture("TIFF", "CMYK"), picture("TIFF", "L", compression="tiff_adobe_deflate")),
    ]


def _zip() -> list[bytes]:
    files = []
    for packing in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", packing) as archive:
            for name in ("photos/a.png", "photos/b.png"):
                archive.writestr(name, picture("PNG"))
            archive.writestr("notes.txt", b"of these photographs")
        files.append(buffer.getvalue())
    return files


def _parquet() -> list[bytes]:
    import pyarrow
    from pyarrow import parquet

    lists = [[float(i + j) for j in range(3)] for i in range(5)]
    files = []
    for columns in (
        {"a": np.linspace(0, 1, 9), "b": np.arange(9), "c": ["text"] * 9},
        {"x": lists, "label": np.arange(5)},
        {"image": [{"bytes": picture("PNG"), "path": "a.png"}] * 3},
    ):
        buffer = io.BytesIO()
        parquet.write_table(pyarrow.table(columns), buffer, row_group_size=4)
        files.append(buffer.getvalue())
    return files


def _torch(name: str = "archive/data.pkl") -> list[bytes]:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, hostile.state_dict({"conv.weight": "0", "conv.bias": "1"}))
        for key in "01":
            archive.writestr(f"archive/data/{key}", np.arange(6, dtype=np.float32).tobytes())
    return [buffer.getvalue()]


def _legacy() -> list[bytes]:
    return [hostile.legacy_file(hostile.state_dict({"conv.weight": "0", "conv.bias": "1"}))]


def _read_torch(path: Path) -> Any:
    from kaem.metrics.inception.torch_files import read_torch

    return read_torch(path)


def _read_weights(path: Path) -> Any:
    from kaem.errors import UserError
    from kaem.metrics.inception.weights import read_weights

    try:
        return read_weights(path)
    except UserError as error:
        if "but not those of the InceptionV3" not in str(error):  # all arrays were read
            raise


def _read_model(path: Path) -> Any:
    from kaem.loading import read, read_config

    read_config(path)
    return read(path)


def _models() -> list[bytes]:
    stored = [path.read_bytes() for path in sorted((HERE / "seeds").glob("*.safetensors"))]
    return stored + [
        (FIXTURES / f"{n}.safetensors").read_bytes() for n in ("mixture", "vae", "ddpm")
    ]


def _structure(data: bytes) -> bytes:
    header = hostile.header_of(data)
    header["__metadata__"]["structure"] = json.loads(header["__metadata__"]["structure"])
    return json.dumps(header).encode()


def _with_structure(data: bytes, inner: bytes) -> bytes:
    try:
        header = json.loads(inner)
        header["__metadata__"]["structure"] = json.dumps(header["__metadata__"]["structure"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return hostile.with_header(data, inner)
    return hostile.with_header(data, json.dumps(header).encode())


def _settings(path: Path) -> Any:
    from kaem.settings import Settings, merge, read_file

    return Settings.from_dict(merge({}, read_file(path)))


def _toml() -> list[bytes]:
    import kaem.settings.presets as presets

    folder = Path(presets.__path__[0])
    return [(folder / f"{name}.toml").read_bytes() for name in ("quickstart", "svhn", "vae-digits")]


def _config() -> list[bytes]:
    from kaem.settings import Settings, read_preset

    now = {
        "what": "x",
        "settings": Settings.from_dict(read_preset("digits-kan")).to_dict(),
        "data": {"shape": [9, 2, 2, 1]},
    }
    now |= {"created": "today", "versions": {"kaem": "1"}}
    return [json.dumps(now).encode()]


def _record() -> list[bytes]:
    return [*_config(), (FIXTURES / "run" / "config.json").read_bytes()]


@cache
def _model_of_run() -> Any:
    from kaem.loading import read

    return read(FIXTURES / "run")


def _run(path: Path) -> Any:
    """Everything that is said of a run from its own files."""
    from kaem.cli import main
    from kaem.interpret import report
    from kaem.runs import comparing
    from kaem.runs.folder import RunFolder

    for name in ("config.json", "history.jsonl", "model.safetensors"):
        if not (path.parent / name).exists():
            (path.parent / name).write_bytes((FIXTURES / "run" / name).read_bytes())
    if main(["info", str(path.parent)]) not in (0, 2):
        raise AssertionError("the exit code is neither 0 nor 2")
    run, model = RunFolder.open(path.parent), _model_of_run()
    run.step()
    report.facts(run, model)
    report._metrics(run, str)
    return comparing._entry(run, model, str)


def _metrics() -> list[bytes]:
    entry = {"value": 12.5, "error": 0.3, "interval": [12.0, 13.0], "generated": {"n": 100}}
    details = {"fid": entry, "log_p": {"value": None, "why": "too few"}}
    return [json.dumps({"results": {"fid": 12.5}, "details": details}).encode()]


_FIRST_IMAGE = _member("photos/a.png")
_ALL = (
    Target("idx", "t-ubyte.gz", _load_data, _idx, hostile.IDX, inside=_GZIPPED),
    Target("npy", "a.npy", _load_data, _npy, hostile.NPY, (b"|O", b"'<f8'", b"(99999999,)", b"V0")),
    Target("npz", "a.npz", _load_data, _npz, hostile.NPZ, (b"PK\3\4", b"PK\1\2"), _member("x.npy")),
    Target("cifar", "a.tar.gz", _load_data, _cifar, hostile.CIFAR, (b"ustar  \0", b"2"), _GZIPPED),
    Target("mat", "a.mat", _load_data, _mat, hostile.MAT),
    Target(
        "images",
        "images/a.png",
        lambda path: _load_data(path.parent),
        _images,
        hostile.IMAGES,
        (b"IDAT", b"acTL", b"tRNS", b"Exif\0\0", b"ANIM", b"\xff\xd8"),
    ),
    Target("zip", "a.zip", _load_data, _zip, hostile.ZIP, (b"PK\5\6", b"../../"), _FIRST_IMAGE),
    Target(
        "parquet", "a.parquet", _load_data, _parquet, hostile.PARQUET, (b"PAR1", b"ARROW:schema")
    ),
    Target(
        "torch",
        "a.pt",
        _read_torch,
        _torch,
        hostile.TORCH,
        (b"cos\nsystem\n", b"R", b"Q", b"b"),
        _member("archive/data.pkl"),
    ),
    Target(
        "torch-legacy",
        "a.pth",
        _read_torch,
        _legacy,
        hostile.LEGACY,
        (b"cos\nsystem\n", b"R", b"\x8a\xff"),
    ),
    Target(
        "weights", "a.npz", _read_weights, _npz, hostile.WEIGHTS, (b"PK\1\2",), _member("x.npy")
    ),
    Target(
        "model",
        "a.safetensors",
        _read_model,
        _models,
        hostile.MODEL,
        (b"BF16", b"NaN"),
        (_structure, _with_structure),
        True,
    ),
    Target(
        "toml",
        "a.toml",
        _settings,
        _toml,
        hostile.TOML,
        (b"[", b"kind = ", b"0x" + b"f" * 5000, b"nan", b"1979-05-27"),
    ),
    Target("json", "a.json", _settings, _config, hostile.JSON, (b"NaN", b"1e999"), is_json=True),
    Target(
        "record",
        "run/config.json",
        _run,
        _record,
        hostile.JSON | hostile.RECORD,
        (b"NaN",),
        is_json=True,
    ),
    Target(
        "history",
        "run/history.jsonl",
        _run,
        lambda: [(FIXTURES / "run" / "history.jsonl").read_bytes()],
        hostile.HISTORY,
        (b'{"step":1}\n', b"NaN", b"1e999"),
    ),
    Target("metrics", "run/metrics.json", _run, _metrics, hostile.METRICS, (b"NaN",), is_json=True),
)
TARGETS = {target.name: target for target in _ALL}
