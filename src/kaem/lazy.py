"""Submodules as attributes, imported on first use: `import kaem; kaem.priors.Table`."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from types import ModuleType


def submodules(package: str, path: Iterable[str]) -> Callable[[str], ModuleType]:
    """Return a `__getattr__` for the package that imports the submodule of that name."""

    def find(name: str) -> ModuleType:
        if any(module.name == name for module in pkgutil.iter_modules(list(path))):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
