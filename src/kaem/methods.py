"""Compiled methods that remain ordinary functions when bound.

Equinox binds a method as a pytree, which `jax.jit` cannot hash where it holds arrays. A method made
by `compiled` binds as a closure: `jax.jit(model.generate)`, `jax.grad(model.prior.log_prob)` and
`jax.vmap(model.prior.inverse_cdf)` all work, with the model's arrays as constants.
"""

import dataclasses
from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])


class _Compiled:
    def __init__(self, function: Callable[..., Any], check: Callable[..., None] | None) -> None:
        self._function, self._check = eqx.filter_jit(function), check
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self.__wrapped__ = function

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        if instance is None:
            return self._function

        @wraps(self.__wrapped__)
        def bound(*arguments: Any, **named: Any) -> Any:
            if self._check is not None:
                self._check(instance, *arguments, **named)
            # A whole number of NumPy is a number of samples too, not an array to be traced.
            plain = (int(a) if isinstance(a, np.integer) else a for a in arguments)
            return self._function(instance, *plain, **named)

        return bound


# Marks of fields, as in `grid: Array = eqx.field(metadata=FIXED)`.
# Arrays that no optimiser touches: they are moved in other ways, or not at all.
FIXED = {"fixed": True}
# A plain number that a compiled update takes as an argument, so that other values compile nothing;
# elsewhere it is an ordinary number, and compiled code has it as a constant.
ARGUMENT = {"argument": True}


def with_arguments(module: Any) -> Any:
    """Return the module with the numbers of its argument fields as arrays, for compiled code to take."""
    for field in dataclasses.fields(module):
        if field.metadata.get("argument", False):
            number = jnp.float32(getattr(module, field.name))
            module = eqx.tree_at(attrgetter(field.name), module, number)
    return module


if TYPE_CHECKING:

    def compiled(check: Callable[..., None] | None = None) -> Callable[[F], F]: ...

else:

    def compiled(check: Callable[..., None] | None = None) -> Callable[[F], _Compiled]:
        """`eqx.filter_jit` for a method; `check(self, ...)` sees its arguments before they are traced."""
        return lambda function: _Compiled(function, check)


def check_count(owner: Any, key: Any, n: int, *_: Any, **__: Any) -> None:
    """Raise unless `n` can be a number of samples."""
    if isinstance(n, bool) or not hasattr(n, "__index__") or n < 1:
        raise ValueError(f"the number of samples must be a whole number of at least 1, got {n!r}.")


def assembled(cls: type, fields: dict[str, Any]) -> Any:
    """Return an instance of a frozen module with these `fields`, as unflattening a pytree would make it."""
    module: Any = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(module, name, value)
    return module


def modified(module: Any, **fields: Any) -> Any:
    """Return a copy of a module with other static `fields`, which `eqx.tree_at` does not reach."""
    same = {field.name: getattr(module, field.name) for field in dataclasses.fields(module)}
    return assembled(type(module), same | fields)
