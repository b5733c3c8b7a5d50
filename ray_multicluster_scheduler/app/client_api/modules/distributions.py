"""Finds what pip and other installers have put into a folder, by the ``*.dist-info`` folders there."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from ray_multicluster_scheduler.common.logging import get_logger

_SUFFIX = ".dist-info"
_FIRST_PART = re.compile(r'^"?([^/,"\n]+)', re.MULTILINE)
"""The file or folder at the top of a path in RECORD, which is a CSV file."""

_log = get_logger(__name__)


def installed_names(folder: Path) -> frozenset[str]:
    """Return the names of the installed files and folders directly in ``folder``. Never raises."""
    try:
        changed = folder.stat().st_mtime_ns
    except OSError:
        return frozenset()
    return _names_in(folder, changed)


@functools.lru_cache(maxsize=256)
def _names_in(folder: Path, _changed: int) -> frozenset[str]:
    names: set[str] = set()
    try:
        infos = [item for item in os.scandir(folder) if item.name.endswith(_SUFFIX)]
    except OSError as error:
        _log.debug("%s cannot be searched for installed packages: %s", folder, error)
        return frozenset()
    for info in infos:
        names |= _names_of(Path(info.path))
    return frozenset(names)


def _names_of(info: Path) -> set[str]:
    """The names that the distribution lists in RECORD; without that file, its top-level modules."""
    record = _text(info / "RECORD")
    if record:
        return set(_FIRST_PART.findall(record))
    project = re.sub(r"[-.]+", "_", info.name.removesuffix(_SUFFIX).partition("-")[0]).lower()
    modules = _text(info / "top_level.txt").split() or [project]
    return {name for module in modules for name in (module, f"{module}.py")}


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""
