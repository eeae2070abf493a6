r"""The InceptionV3 of the Fréchet inception distance, up to its 2048 pooled features.

It is TensorFlow's network of 2015 (Szegedy et al., arXiv:1512.00567), on which the published numbers
rest, and it differs from torchvision's: average pools divide by the pixels they cover and not by
nine, the last block pools by maximum, and images are resized the old way, without antialiasing or
half-pixel centres, $x_\text{in} = x_\text{out}\,n_\text{in}/n_\text{out}$, before $(x - 128)/128$.

Batch normalisation is folded into the convolutions, $W' = \gamma W/\sqrt{v+\epsilon}$,
$b' = \beta - \gamma m/\sqrt{v+\epsilon}$, $\epsilon = 10^{-3}$. The network is a table, which the
forward pass, the checks of weights and the benchmarks read.

For speed the 1x1 convolutions that begin a block's branches are one matrix product. The average
pool's is among them: averages of pixels commute with a matrix over channels, and with its bias,
and fewer channels are left to average.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

SIZE, FEATURES = 299, 2048
EPSILON = 1e-3  # of batch normalisation

Image = Float[Array, "n H W C"]


class Convolution(NamedTuple):
    """A convolution with its batch normalisation and ReLU."""

    name: str
    inputs: int
    outputs: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padded: bool = True

    @property
    def padding(self) -> list[tuple[int, int]]:
        return [(size // 2, size // 2) if self.padded else (0, 0) for size in self.kernel]


class Branch(NamedTuple):
    """Convolutions one after another, then, if any, those of `fork` side by side."""

    chain: tuple[Convolution, ...]
    fork: tuple[Convolution, ...] = ()


class Block(NamedTuple):
    """Branches and a 3x3 pool side by side; the pool may be followed by a convolution."""

    branches: tuple[Branch, ...]
    pool: Literal["average", "max"]
    stride: int = 1
    pooled: Convolution | None = None


Step = tuple[int, tuple[int, int]] | tuple[int, tuple[int, int], int]


def _branch(name: str, inputs: int, *steps: Step, fork: int = 0) -> Branch:
    """Names as in torchvision: `name` if there is one step, else `name_1`, `name_2`, ..."""
    chain: list[Convolution] = []
    for i, (outputs, kernel, *stride) in enumerate(steps, 1):
        label = name if len(steps) == 1 and not fork else f"{name}_{i}"
        step = stride[0] if stride else 1
        chain.append(Convolution(label, inputs, outputs, kernel, step, padded=step == 1))
        inputs = outputs
    last = f"{name}_{len(steps) + 1}"
    kernels = {"a": (1, 3), "b": (3, 1)} if fork else {}
    ends = tuple(Convolution(last + side, inputs, fork, k) for side, k in kernels.items())
    return Branch(tuple(chain), ends)


ONE, THREE, FIVE, ROW, COLUMN = (1, 1), (3, 3), (5, 5), (1, 7), (7, 1)


def _a(name: str, inputs: int, pooled: int) -> Block:
    branches = (
        _branch(f"{name}.branch1x1", inputs, (64, ONE)),
        _branch(f"{name}.branch5x5", inputs, (48, ONE), (64, FIVE)),
        _branch(f"{name}.branch3x3dbl", inputs, (64, ONE), (96, THREE), (96, THREE)),
    )
    return Block(branches, "average", pooled=Convolution(f"{name}.branch_pool", inputs, pooled))


def _b(name: str, inputs: int) -> Block:
    branches = (
        _branch(f"{name}.branch3x3", inputs, (384, THREE, 2)),
        _branch(f"{name}.branch3x3dbl", inputs, (64, ONE), (96, THREE), (96, THREE, 2)),
    )
    return Block(branches, "max", stride=2)


def _c(name: str, inputs: int, inner: int) -> Block:
    row, column = (inner, ROW), (inner, COLUMN)
    branches = (
        _branch(f"{name}.branch1x1", inputs, (192, ONE)),
        _branch(f"{name}.branch7x7", inputs, (inner, ONE), row, (192, COLUMN)),
        _branch(f"{name}.branch7x7dbl", inputs, (inner, ONE), column, row, column, (192, ROW)),
    )
    return Block(branches, "average", pooled=Convolution(f"{name}.branch_pool", inputs, 192))


def _d(name: str, inputs: int) -> Block:
    seven = (192, ONE), (192, ROW), (192, COLUMN), (192, THREE, 2)
    branches = (
        _branch(f"{name}.branch3x3", inputs, (192, ONE), (320, THREE, 2)),
        _branch(f"{name}.branch7x7x3", inputs, *seven),
    )
    return Block(branches, "max", stride=2)


def _e(name: str, inputs: int, pool: Literal["average", "max"]) -> Block:
    branches = (
        _branch(f"{name}.branch1x1", inputs, (320, ONE)),
        _branch(f"{name}.branch3x3", inputs, (384, ONE), fork=384),
        _branch(f"{name}.branch3x3dbl", inputs, (448, ONE), (384, THREE), fork=384),
    )
    return Block(branches, pool, pooled=Convolution(f"{name}.branch_pool", inputs, 192))


# Each list is followed by a 3x3 max pool with stride 2.
STEM = (
    (
        Convolution("Conv2d_1a_3x3", 3, 32, THREE, 2, padded=False),
        Convolution("Conv2d_2a_3x3", 32, 32, THREE, padded=False),
        Convolution("Conv2d_2b_3x3", 32, 64, THREE),
    ),
    (
        Convolution("Conv2d_3b_1x1", 64, 80),
        Convolution("Conv2d_4a_3x3", 80, 192, THREE, padded=False),
    ),
)
BLOCKS = (
    _a("Mixed_5b", 192, 32),
    _a("Mixed_5c", 256, 64),
    _a("Mixed_5d", 288, 64),
    _b("Mixed_6a", 288),
    _c("Mixed_6b", 768, 128),
    _c("Mixed_6c", 768, 160),
    _c("Mixed_6d", 768, 160),
    _c("Mixed_6e", 768, 192),
    _d("Mixed_7a", 768),
    _e("Mixed_7b", 1280, "average"),
    _e("Mixed_7c", 2048, "max"),
)


def convolutions() -> list[Convolution]:
    """All 94, in the order in which weights list them."""
    found = [convolution for part in STEM for convolution in part]
    for block in BLOCKS:
        for branch in block.branches:
            found += [*branch.chain, *branch.fork]
        found += [block.pooled] if block.pooled else []
    return found


class Folded(NamedTuple):
    """A convolution's kernel and bias with batch normalisation folded in."""

    kernel: Float[Array | np.ndarray, "h w I O"]
    bias: Float[Array | np.ndarray, " O"]


Weights = Mapping[str, Folded]


def fold(
    weight: Float[np.ndarray, "O I h w"],
    gamma: Float[np.ndarray, " O"],
    beta: Float[np.ndarray, " O"],
    mean: Float[np.ndarray, " O"],
    variance: Float[np.ndarray, " O"],
) -> Folded:
    """torch's layout to ours, computed in float64."""
    scale = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + EPSILON)
    kernel = weight.transpose(2, 3, 1, 0) * scale
    return Folded(kernel.astype(np.float32), (beta - mean * scale).astype(np.float32))


def resize(images: Float[Array, "n H W C"], size: int = SIZE) -> Float[Array, "n size size C"]:
    """Bilinear as in TensorFlow 1: no half-pixel centres, the last row and column repeated."""

    def matrix(length: int) -> Float[np.ndarray, "size length"]:
        # In float32 as there: which pixel a position falls on depends on its rounding.
        position = np.arange(size, dtype=np.float32) * np.float32(length / size)
        low = position.astype(np.int32)
        fraction = position - low
        weights = np.zeros((size, length), np.float32)
        weights[np.arange(size), low] = 1 - fraction
        weights[np.arange(size), np.minimum(low + 1, length - 1)] += fraction
        return weights

    rows, columns = matrix(images.shape[1]), matrix(images.shape[2])
    wide = jnp.einsum("nhwc,xw->nhxc", images, columns)
    return jnp.einsum("nhxc,yh->nyxc", wide, rows)


def features(weights: Weights, images: UInt8[Array, "n H W 3"]) -> Float[Array, "n 2048"]:
    """Return the pooled features of RGB images of any one size."""
    # GPUs would round to ten bits, and move distances.
    with jax.default_matmul_precision("highest"):
        return network(weights, (resize(images.astype(jnp.float32)) - 128) / 128)


def network(weights: Weights, x: Image) -> Float[Array, "n 2048"]:
    """Of images as they come: neither resized nor scaled."""
    for part in STEM:
        for convolution in part:
            x = jax.nn.relu(_convolve(weights, x, convolution))
        x = _max_pool(x, 2)
    for block in BLOCKS:
        x = _block(weights, x, block)
    return jnp.mean(x, axis=(1, 2))


def _convolve(weights: Weights, x: Image, *together: Convolution) -> Image:
    """Convolutions of the same image, kernel and stride, with their outputs concatenated."""
    first = together[0]
    kernel = jnp.concatenate([weights[c.name].kernel for c in together], axis=-1)
    bias = jnp.concatenate([weights[c.name].bias for c in together])
    if first.kernel == ONE:
        return x @ kernel[0, 0] + bias
    strides, dims = (first.stride, first.stride), ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, kernel, strides, first.padding, dimension_numbers=dims)
    return y + bias


def _block(weights: Weights, x: Image, block: Block) -> Image:
    heads = [branch.chain[0] for branch in block.branches if branch.chain[0].kernel == ONE]
    averaged = block.pooled if block.pool == "average" else None
    heads += [averaged] if averaged else []
    ends = np.cumsum([head.outputs for head in heads])
    begun = dict(zip(heads, jnp.split(_convolve(weights, x, *heads), ends[:-1], -1), strict=True))
    outputs = []
    for branch in block.branches:
        y = x
        for convolution in branch.chain:
            y = begun[convolution] if convolution in begun else _convolve(weights, y, convolution)
            y = jax.nn.relu(y)
        outputs += [jax.nn.relu(_convolve(weights, y, end)) for end in branch.fork] or [y]
    if averaged:
        pooled = jax.nn.relu(_average_pool(begun[averaged]))
    else:
        pooled = _max_pool(x, block.stride)
        if block.pooled:
            pooled = jax.nn.relu(_convolve(weights, pooled, block.pooled))
    return jnp.concatenate([*outputs, pooled], axis=-1)


def _max_pool(x: Image, stride: int) -> Image:
    """3x3, padded where it keeps the size."""
    pad = (1, 1) if stride == 1 else (0, 0)
    window, strides = (1, 3, 3, 1), (1, stride, stride, 1)
    padding = ((0, 0), pad, pad, (0, 0))
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, padding)


def _average_pool(x: Image) -> Image:
    """3x3 with stride 1, over the pixels inside the image."""
    padding = ((0, 0), (1, 1), (1, 1), (0, 0))

    def total(x: Array) -> Array:
        return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 3, 3, 1), (1, 1, 1, 1), padding)

    return total(x) / total(jnp.ones((1, *x.shape[1:3], 1)))
