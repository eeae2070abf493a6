"""Damaged copies of files: of the same seed, always the same."""

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

# Numbers at which readers go wrong: ends of types, and what looks like a size but is absurd.
NUMBERS = (0, 1, 7, 127, 128, 255, 256, 32767, 65535, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**62)
VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", "\x00", "\x1b[31m", "\ud800", "none", "nan", "../../x", [], {}),
    *([1, 2], [[]], {"a": 1}, {"kind": "kaem"}, {"value": 3}, {"tuple": []}, {"array": "x"}),
    *(0, -1, 1, 2, 3, 2**31, 2**53 + 1, 2**63, 10**30, -(10**400), 0.0, -0.5, 1e-45, 1e38, 1e308),
    *(float("nan"), float("inf"), float("-inf")),
)


def mutated(
    data: bytes, others: Sequence[bytes], tokens: Sequence[bytes], rng: random.Random
) -> bytes:
    """Return `data` with one to four changes of its bytes; `others` are spliced into it."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        data = rng.choice(_CHANGES)(bytearray(data), others, tokens, rng)
    return bytes(data)


def mutated_json(text: bytes, rng: random.Random) -> bytes:
    """Return a JSON text with some of its values replaced, dropped, repeated or moved."""
    tree = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            break
        container, key = rng.choice(places)
        what = rng.randrange(5)
        if what < 2:
            container[key] = _copy(rng.choice(VALUES))
        elif what == 2:
            del container[key]
        elif what == 3:
            other, name = rng.choice(places)
            container[key] = _copy(other[name])
        elif isinstance(container, list):
            container[key:key] = [container[key]] * rng.choice((1, 3, 300))
        else:
            container[rng.choice(("x", "", "kind", "fields", "step"))] = container[key]
    return json.dumps(tree).encode()


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _places(tree: Any):
    pairs = (
        enumerate(tree)
        if isinstance(tree, list)
        else tree.items()
        if isinstance(tree, dict)
        else ()
    )
    for key, child in list(pairs):
        yield tree, key
        yield from _places(child)


def _flip(data, others, tokens, rng):
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _cut(data, others, tokens, rng):
    return data[: rng.randrange(len(data) + 1)]


def _drop(data, others, tokens, rng):
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.choice((1, 2, 4, 8, 100))]
    return data


def _repeat(data, others, tokens, rng):
    start, size = rng.randrange(len(data) + 1), rng.choice((1, 4, 16, 64, 512))
    data[start:start] = data[start : start + size] * rng.choice((1, 2, 50))
    return data


def _splice(data, others, tokens, rng):
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _number(data, others, tokens, rng):
    """Write a number over another, in either byte order: lengths, offsets and counts."""
    form, size = rng.choice((("B", 1), ("H", 2), ("I", 4), ("Q", 8)))
    start = _early(data, rng)
    value = rng.choice(NUMBERS) % (1 << 8 * size)
    data[start : start + size] = struct.pack(rng.choice("<>") + form, value)
    return data


def _token(data, others, tokens, rng):
    token = rng.choice(
        (*tokens, b"\0", b"\xff" * 8, b"9" * 30, b"-1", b"[" * 2000, b"\xef\xbb\xbf")
    )
    start = _early(data, rng)
    data[start : start + rng.choice((0, len(token)))] = token
    return data


def _early(data, rng):
    """Return a place, near the front as often as not: that is where headers are."""
    return rng.randrange(min(len(data), rng.choice((32, 256, len(data) + 1))) + 1)


_CHANGES = (_flip, _flip, _cut, _drop, _repeat, _splice, _number, _number, _token, _token)
