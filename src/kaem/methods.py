"""Compiled methods that remain ordinary functions when bound.

Equinox binds a method as a pytree, which `jax.jit` cannot hash where it holds arrays. A method made
by `compiled` binds as a closure: `jax.jit(model.generate)`, `jax.grad(model.prior.log_prob)` and
`jax.vmap(model.prior.inverse_cdf)` all work, with the model's arrays as constants.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])


class _Compiled:
    def __init__(self, function: Callable[..., Any], check: Callable[..., None] | None) -> None:
        self._function, self._check = eqx.filter_jit(function), check
        self.__doc__, self.__name__, self.__wrapped__ = (
            function.__doc__,
            function.__name__,
            function,
        )

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
