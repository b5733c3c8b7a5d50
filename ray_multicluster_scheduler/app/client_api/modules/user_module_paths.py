"""Finds the files of the user's own top-level modules and packages, which clusters do not have installed."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import logging
import os
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.app.client_api.modules.distributions import installed_names
from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.common.logging import get_logger

_log = get_logger(__name__)
_NEVER = frozenset({"", "__main__", "__mp_main__", "builtins", "cloudpickle", "ray", "ray_multicluster_scheduler"})
_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages"})
_logged: set[tuple[str, str]] = set()


def user_module_paths(top: str) -> tuple[Path, ...]:
    """Return the files and folders of a user's own top-level module or package, without importing it. Several for a
    namespace package in several folders; none for an installed, built-in or unknown one."""
    if top in _NEVER:
        return ()
    if top in sys.stdlib_module_names:
        _refuse_stdlib_name(top)
        return ()
    file, folders = _origin(top)
    return _shippable(top, file, folders)


def log_once(level: int, key: tuple[str, str], sentence: str, *details: object) -> bool:
    """Log a line once per process, not for every task. Returns whether this was the first time."""
    first = key not in _logged
    if first:
        _logged.add(key)
        _log.log(level, sentence, *details)
    return first


def _refuse_stdlib_name(top: str) -> None:
    """Refuse a name that either hides a standard module from Ray, or is hidden by it. Raises TaskSubmissionError."""
    file, _ = _of_module(sys.modules.get(top))
    if file is not None and os.path.isfile(file) and not _is_installed(file):
        raise TaskSubmissionError(
            f"The module {top!r} ({file}) is named like one of the standard library, which it would hide on a cluster.",
            next_step=f"rename {os.path.basename(file)}, or put it into a package",
        )


def _origin(top: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the module's file and the package's folders, as an import here would find (or has found) them."""
    if top in sys.modules:
        return _of_module(sys.modules[top])
    try:
        spec = importlib.util.find_spec(top)
    except Exception as error:  # noqa: BLE001 - import hooks run arbitrary code
        _log.debug("the origin of %s cannot be determined: %r", top, error)
        return None, ()
    if spec is None:
        return None, ()
    return spec.origin if spec.has_location else None, tuple(map(str, spec.submodule_search_locations or ()))


def _of_module(module: Any) -> tuple[str | None, tuple[str, ...]]:
    # sys.modules may hold objects of any type.
    space = getattr(module, "__dict__", {})
    file, folders = space.get("__file__"), space.get("__path__") or ()
    try:
        return file if isinstance(file, str) else None, tuple(map(str, folders))
    except TypeError:
        return None, ()


@functools.lru_cache(maxsize=4096)
def _shippable(top: str, file: str | None, folders: tuple[str, ...]) -> tuple[Path, ...]:
    # Not resolved: a link is imported by its own name, which may differ from its target's. Without repetitions: a
    # namespace package lists its folder as often as the search path lists the folder above.
    candidates = dict.fromkeys(os.path.abspath(place) for place in folders or (file,) if place)
    own = [place for place in candidates if not _is_installed(place)]
    usable = tuple(Path(place) for place in own if _can_be_imported_as(top, place))
    if own and not usable:
        what = "the user's module %s comes from %s, which is not a file or folder of that name: it is not shipped"
        log_once(logging.WARNING, ("unusable", top), what, top, ", ".join(own))
    return usable


def _can_be_imported_as(top: str, place: str) -> bool:
    name = os.path.basename(place)
    if os.path.isdir(place):
        return name == top
    return os.path.isfile(place) and any(name == top + suffix for suffix in importlib.machinery.all_suffixes())


@functools.lru_cache(maxsize=4096)
def _is_installed(place: str) -> bool:
    """Is it part of an installed distribution? A folder that is linked into an installation is a working copy; some
    installers link single files."""
    if _is_in_installation(os.path.realpath(place)):
        return True
    linked_folder = os.path.islink(place) and os.path.isdir(place)
    named = os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
    return not linked_folder and _is_in_installation(named)


def _is_in_installation(place: str) -> bool:
    path = Path(place)
    if not _INSTALLED_FOLDERS.isdisjoint(path.parts[:-1]) or any(map(path.is_relative_to, _installations())):
        return True
    # `pip install --target` installs into any folder. A binary package may keep its libraries in a folder beside it.
    return path.name in installed_names(path.parent) or os.path.isdir(f"{place}.libs")


@functools.cache
def _installations() -> frozenset[Path]:
    roots = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots |= {*site.getsitepackages(), site.getusersitepackages()}
    return frozenset(Path(root).resolve() for root in roots if root)
