"""late_names(): a package that offers the names of its modules, and loads a module when one of them is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def late_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """For a package's ``__getattr__``; ``homes`` has by module the names that are there, with spaces between them.

    Whoever needs one light module of a package does not pay for all others.
    """
    module_of = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    return find
