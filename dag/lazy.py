"""A package whose names are loaded from its submodules when they are asked for: who needs one does not wait for all."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package with names that stand in its submodules.

    Python sets a submodule on its package when it is loaded, whenever that is; a function that has the name of its submodule
    is not hidden by it here.
    """

    homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self.homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{self.homes[name]}", self.__name__), name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.homes})

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(self).get("homes", ()) or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # cloudpickle knows plain modules alone.
        return import_module, (self.__name__,)


def load_on_use(package: str, homes: Mapping[str, str]) -> None:
    """Let ``package``, which is being imported, take each name in ``homes`` from that submodule of it on first use."""
    module = sys.modules[package]
    module.__class__ = LazyPackage
    vars(module)["homes"] = homes
