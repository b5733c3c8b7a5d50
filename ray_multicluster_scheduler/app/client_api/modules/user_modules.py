"""Adds the user's own modules that a task needs on a cluster to the ``py_modules`` of its runtime_env."""

from __future__ import annotations

import logging
import os
import sys
import time
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.app.client_api.modules.source_imports import extension_modules, imports_of
from ray_multicluster_scheduler.app.client_api.modules.user_module_paths import log_once, user_module_paths
from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.common.notices import notify, shorten

_FRESH_S = 0.25
_MAX_CACHED = 1_000


def with_users_modules(runtime_env: Mapping[str, Any], modules: Iterable[str]) -> dict[str, Any]:
    """Add the user's own modules to the ``py_modules`` of a runtime_env, except for those that it ships already. The
    caller's come first, so that they take precedence. With an empty list of ``py_modules`` no module is added. Raises
    TaskSubmissionError for a module that cannot work on a cluster."""
    env = dict(runtime_env)
    given: list[str] = list(env.get("py_modules", ()))
    if "py_modules" in env and not given:
        return env
    places = modules_to_ship(modules)
    if not places:
        return env
    working_dir = env.get("working_dir")
    wanted = [str(place) for place in places if not _is_in_folder(place, working_dir) and not _is_among(place, given)]
    if wanted:
        env["py_modules"] = [*given, *wanted]
    return env


def modules_to_ship(modules: Iterable[str]) -> list[Path]:
    """Return the user's own top-level modules among these, and those that their sources import, recursively."""
    tops = frozenset(name.partition(".")[0] for name in modules)
    key = (tops, tuple(sys.path))
    answer = _cache.get(key)
    if answer is None or not answer.is_valid():
        answer = _search(tops)
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        _cache[key] = answer
    return list(answer.places)


@dataclass(frozen=True, slots=True)
class _SearchResult:
    """Cached for a moment, since programs submit many tasks in a row, and a search reads all files."""

    places: tuple[Path, ...]
    until: float
    loaded: tuple[tuple[str, object, object], ...]

    def is_valid(self) -> bool:
        """False after the time limit, or when a module was reloaded or replaced."""
        return time.monotonic() < self.until and all(
            sys.modules.get(name) is module and getattr(module, "__spec__", None) is spec
            for name, module, spec in self.loaded
        )


_cache: dict[tuple[frozenset[str], tuple[str, ...]], _SearchResult] = {}


def _search(tops: frozenset[str]) -> _SearchResult:
    places: list[Path] = []
    own: set[str] = set()
    seen = set(tops)
    pending = sorted(tops)
    while pending:
        top = pending.pop(0)
        for place in _places(top, named_by_task=top in tops):
            imports = imports_of(place)
            if imports is None:
                continue  # a folder of the same name that is not a module
            own.add(top)
            places.append(place)
            _announce(top, place)
            pending += sorted(imports - seen)
            seen |= imports
    return _SearchResult(tuple(sorted(places)), time.monotonic() + _FRESH_S, _loaded(own) if own else ())


def _announce(top: str, place: Path) -> None:
    """Log that it is shipped. Warn if it has extension modules, which run on machines like this one only."""
    if not log_once(logging.INFO, ("shipped", str(place)), "%s is shipped to the clusters that run its code", place):
        return
    compiled = extension_modules(place)
    if compiled:
        notify(
            f"the module {top} is shipped with its extension modules ({shorten(compiled, 1)}), which load only where "
            "system, processor and Python are as here. If the clusters have it, install it here with pip, too: what is "
            "installed is not shipped"
        )


def _loaded(tops: set[str]) -> tuple[tuple[str, object, object], ...]:
    """Return the currently loaded modules of these packages, None for one that is not loaded."""
    names = tops.union(name for name in list(sys.modules) if name.partition(".")[0] in tops)
    modules = [(name, sys.modules.get(name)) for name in names]
    return tuple((name, module, getattr(module, "__spec__", None)) for name, module in modules)


def _places(top: str, *, named_by_task: bool) -> tuple[Path, ...]:
    try:
        return user_module_paths(top)
    except TaskSubmissionError as error:
        if named_by_task:
            raise
        log_once(logging.WARNING, ("double", top), "%s", error)
        return ()


def _is_in_folder(place: Path, working_dir: object) -> bool:
    """Does the working_dir have a top-level module of this name? Assumed of one that cannot be read, since a shipped
    module would hide the caller's."""
    if not isinstance(working_dir, str):
        return False
    if "://" in working_dir:
        return True
    if working_dir.endswith(".zip"):
        return _is_in_archive(place, working_dir)
    return any(_stands_for(Path(working_dir, name), place) for name in (_top(place), f"{_top(place)}.py"))


def _is_in_archive(place: Path, archive: str) -> bool:
    try:
        with zipfile.ZipFile(archive) as file:
            tops = {name.partition("/")[0] for name in file.namelist()}
    except (OSError, zipfile.BadZipFile):
        return True  # refused later, when it is packed
    return place.name in tops


def _is_among(place: Path, given: Iterable[str]) -> bool:
    """Has one of the caller's own modules this name?"""
    return any("://" not in item and _stands_for(Path(item), place) for item in given)


def _stands_for(other: Path, place: Path) -> bool:
    """Is it the same file, or a module that hides it? Folders without `__init__` are merged instead."""
    if os.path.realpath(other) == os.path.realpath(place):
        return True
    return _top(other) == _top(place) and _is_module(other) and _is_module(place)


def _is_module(path: Path) -> bool:
    return (path / "__init__.py").is_file() if path.is_dir() else path.is_file() and path.suffix != ".whl"


def _top(path: Path) -> str:
    """Return the name to import: without `.py` or `.cpython-311-x86_64-linux-gnu.so`."""
    return os.path.basename(os.path.abspath(path)).partition(".")[0]
