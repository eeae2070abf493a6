"""Submodules as attributes, imported on first use: `import kaem; kaem.priors.Table`."""

import importlib
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def submodules(package: str) -> None:
    """Let `package` import a submodule when it is asked for the attribute of that name.

    Its `__getattr__` is set from outside, so that type checkers go on knowing all its names.
    """
    module = sys.modules[package]

    def find(name: str) -> ModuleType:
        if any(found.name == name for found in pkgutil.iter_modules(module.__path__)):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    module.__dict__.setdefault("__getattr__", find)


def callable_as(package: str, function: Callable[..., Any]) -> None:
    """Let a package be called like its main function: `kaem.export(run, "c")`."""
    kind = type("CallableModule", (ModuleType,), {"__call__": staticmethod(function)})
    sys.modules[package].__class__ = kind
