"""lazy_attributes(): lets a package export names of its modules, and imports a module when a name is first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_attributes(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """A ``__getattr__`` for a package; ``modules`` maps each module to its exported names, separated by spaces.

    A caller that needs one light module of the package does not import the others.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    return find
