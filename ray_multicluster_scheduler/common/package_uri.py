"""Packages that a program has given to its service: how a runtime_env names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SCHEME = "rmcs://"


def stored_package(digest: str, name: str) -> str:
    """A package with this content, to be called so in a cluster."""
    return f"{_SCHEME}{digest}/{name}"


def is_stored(uri: object) -> bool:
    return isinstance(uri, str) and uri.startswith(_SCHEME)


def digest_and_name(uri: str) -> tuple[str, str]:
    digest, _, name = uri.removeprefix(_SCHEME).partition("/")
    return digest, name


def local_paths_in(runtime_env: Mapping[str, Any]) -> list[str]:
    """What would be read from the disk of whoever prepares it: anything that is no URI."""
    if not runtime_env:
        return []
    modules = runtime_env.get("py_modules")
    named = [runtime_env.get("working_dir"), *(modules if isinstance(modules, (list, tuple)) else [modules])]
    return [str(one) for one in named if one is not None and not (isinstance(one, str) and "://" in one)]


def packages_in(runtime_env: Mapping[str, Any]) -> list[str]:
    """The digests of all such packages."""
    if not runtime_env:
        return []
    modules = runtime_env.get("py_modules")
    named = [runtime_env.get("working_dir"), *(modules if isinstance(modules, (list, tuple)) else ())]
    return [digest_and_name(uri)[0] for uri in named if is_stored(uri)]
