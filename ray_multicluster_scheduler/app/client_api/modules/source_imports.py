"""Finds the top-level names that the source files of a module or package import. Cached until a file changes."""

from __future__ import annotations

import importlib.machinery
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from ray_multicluster_scheduler.common.imported_names import names_in_source
from ray_multicluster_scheduler.common.logging import get_logger

MAX_FILES = 5_000
MAX_BYTES = 4 * 1024 * 1024
_KEPT = 20_000
_SUFFIXES = tuple(importlib.machinery.all_suffixes())
_EXTENSIONS = tuple(importlib.machinery.EXTENSION_SUFFIXES)

_log = get_logger(__name__)
_Stamp = tuple[int, int]
_known: dict[str, tuple[_Stamp, frozenset[str]]] = {}
_lock = threading.Lock()


def imports_of(place: Path) -> frozenset[str] | None:
    """Return the top-level names that the sources at ``place`` import; None for a folder without importable files.
    Never raises: unreadable files and files beyond MAX_FILES are skipped."""
    if not place.is_dir():
        return _imports(str(place))
    found: set[str] = set()
    number = 0
    for number, path in enumerate(_importable(str(place)), 1):
        if number > MAX_FILES:
            _log.debug("%s has more than %d files: the imports of the others are not searched", place, MAX_FILES)
            break
        found |= _imports(path)
    return frozenset(found) if number else None


def extension_modules(place: Path) -> list[str]:
    """Return the compiled modules at ``place``, a file or a folder. Searches MAX_FILES files at most."""
    paths = itertools.islice(_importable(str(place)), MAX_FILES) if place.is_dir() else [str(place)]
    return sorted(path for path in paths if path.endswith(_EXTENSIONS))


def _importable(folder: str) -> Iterator[str]:
    """Yield the importable files below a folder, without following links."""
    pending = [folder]
    while pending:
        here = pending.pop()
        try:
            items = list(os.scandir(here))
        except OSError as error:
            _log.debug("%s cannot be searched for imports: %s", here, error)
            continue
        for item in items:
            if item.is_dir(follow_symlinks=False):
                if item.name != "__pycache__" and not item.name.startswith("."):
                    pending.append(item.path)
            elif item.name.endswith(_SUFFIXES):
                yield item.path


def _imports(path: str) -> frozenset[str]:
    if not path.endswith(".py"):
        return frozenset()
    try:
        status = os.stat(path)
    except OSError:
        return frozenset()  # a dangling link, or just removed
    stamp = (status.st_mtime_ns, status.st_size)
    known = _known.get(path)
    if known is not None and known[0] == stamp:
        return known[1]
    names = _read(path) if status.st_size <= MAX_BYTES else frozenset()
    if len(_known) >= _KEPT:
        _known.clear()
    _known[path] = (stamp, names)
    return names


def _read(path: str) -> frozenset[str]:
    try:
        with open(path, "rb") as file:
            source = file.read()
        with _lock:
            names = names_in_source(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        _log.debug("%s cannot be read for imports: %r", path, error)
        return frozenset()
    return frozenset(name.partition(".")[0] for name in names)
