"""Images in the formats that data sets come in."""

import io
import struct
import tarfile
import zipfile

import numpy as np
from PIL import Image
from scipy.io import savemat


def idx(images):
    return (
        b"\0\0\x08"
        + bytes([images.ndim])
        + struct.pack(f">{images.ndim}I", *images.shape)
        + images.tobytes()
    )


def some_images(n=6):
    return np.random.default_rng(0).integers(0, 256, (n, 28, 28), np.uint8)


def encoded(image, kind="PNG"):
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def colours(n=4, size=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), np.uint8)


def write_mat(path, x, **others):
    """As MATLAB has it: examples along the last axis, compressed."""
    savemat(path, {"X": x.transpose(1, 2, 3, 0), **others}, do_compression=True)


def write_tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def cifar_members(count=2):
    """Batch k holds labels k and images whose red is k, green 100 + row, blue 200 + column / 2."""
    row, column = np.mgrid[:32, :32]
    members = {}
    for k in (2, 5, 1, 4, 3, 6):  # in no order, as in the canonical archive
        planes = np.stack([np.full((32, 32), k), 100 + row, 200 + column // 2]).astype(np.uint8)
        name = f"data_batch_{k}.bin" if k < 6 else "test_batch.bin"
        members[name] = (bytes([k]) + planes.tobytes()) * count
    return members


def write_zip(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def numbered_faces(numbers):
    """CelebA's layout, 178 x 218: a centre of 148 x 148 with its own grey, in a white frame."""
    files = {}
    for i, number in enumerate(numbers):
        image = Image.new("RGB", (178, 218), "white")
        image.paste((20 * i,) * 3, (15, 35, 163, 183))
        files[f"img_align_celeba/{number:06}.jpg"] = encoded(image, "PNG")  # exact, unlike JPEG
    return files
