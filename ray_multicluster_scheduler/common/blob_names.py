"""Names of blobs (code, arguments, values, packages): digests of their content, and package URIs in a runtime_env."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

_SCHEME = "rmcs://"


def digest_of(data: bytes) -> str:
    """The digest of a blob: equal bytes have equal digests."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def new_digest() -> hashlib.blake2b:
    """The same for bytes in pieces: update it, then take its ``hexdigest()``."""
    return hashlib.blake2b(digest_size=16)


def package_uri(digest: str, name: str) -> str:
    """The URI of a package that a program uploaded to its service; ``name`` is its file name in a cluster."""
    return f"{_SCHEME}{digest}/{name}"


def is_package_uri(uri: object) -> bool:
    return isinstance(uri, str) and uri.startswith(_SCHEME)


def digest_and_name(uri: str) -> tuple[str, str]:
    digest, _, name = uri.removeprefix(_SCHEME).partition("/")
    return digest, name


def local_paths_in(runtime_env: Mapping[str, Any]) -> list[str]:
    """The packages that are local paths on the machine that prepares the environment, not URIs."""
    return [str(one) for one in _packages(runtime_env) if not (isinstance(one, str) and "://" in one)]


def package_digests_in(runtime_env: Mapping[str, Any]) -> list[str]:
    """The digests of all uploaded packages."""
    return [digest_and_name(one)[0] for one in _packages(runtime_env) if is_package_uri(one)]


def _packages(runtime_env: Mapping[str, Any]) -> Iterator[Any]:
    if not runtime_env:
        return
    modules = runtime_env.get("py_modules")
    for one in (runtime_env.get("working_dir"), *(modules if isinstance(modules, (list, tuple)) else [modules])):
        if one is not None:
            yield one
