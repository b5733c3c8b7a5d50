"""Explains failed imports in a cluster: which copy of a module was loaded, and whether it was shipped with the item."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

_SHIPPED = {"py_modules_files": "py_modules", "working_dir_files": "working_dir"}
_PREPARED = frozenset({"pip", "uv", "conda"})
"""The folders of Ray's ``runtime_resources``: what was shipped, and what was installed for one runtime_env."""
_RESOURCES = "runtime_resources"
_NOT_USERS = ("ray", "ray_multicluster_scheduler", "importlib")


def explain_import(error: BaseException) -> str:
    """Explain a failed import; empty if no copy of a module is at fault."""
    if not isinstance(error, ImportError):
        return ""
    top = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and top:
        file = _file_of(top)
        return _incomplete(error.name or "", top, file) if file else _missing(error.name or "", top)
    name, file = next(_candidates(error), (top, _file_of(top)))
    return _loaded(_top_of(file) or name.partition(".")[0], file) if file else ""


def note_import(error: BaseException) -> str:
    """Add the explanation to the error as a note; return it as the end of a sentence."""
    why = explain_import(error)
    if why:
        error.add_note(why)
    return f". {why}" if why else ""


def _missing(name: str, top: str) -> str:
    return (
        f"the module {name!r} cannot be found on the cluster. If it is your own, pass it with "
        f"runtime_env={{'py_modules': ['path/to/{top}']}}: only imports that are written out are found by themselves. "
        f"If it is installed where you are, have it installed there: runtime_env={{'pip': [{top!r}]}}"
    )


def _incomplete(name: str, top: str, file: str) -> str:
    return f"{_loaded(top, file)}. {name!r} is not in this copy (.gitignore and excludes apply to what is shipped)"


def _loaded(top: str, file: str) -> str:
    """Names the copy that was loaded, and the next step."""
    copy = f"{top!r} was loaded from {file}"
    kind = _origin(file)
    if kind in _PREPARED:
        return f"{copy}, which was installed for the {kind!r} of the runtime_env"
    if not kind:
        step = f"have another version installed there: runtime_env={{'pip': [{top!r}]}}"
        return f"{copy}, the cluster's own copy; it was not shipped. If it does not fit, {step}"
    hidden = _clusters_own(top)
    hides = f" and hides the cluster's own copy, {hidden}" if hidden else ""
    step = "what is installed where you submit (with pip, in any folder) is not shipped by itself"
    return f"{copy}, which was shipped with the item ({kind} of its runtime_env){hides}. To use another copy: {step}"


def _origin(file: str) -> str:
    """The key of the runtime_env that brought the file to the cluster; empty if none did."""
    _, found, rest = os.path.realpath(file).rpartition(f"{os.sep}{_RESOURCES}{os.sep}")
    folder = rest.partition(os.sep)[0] if found else ""
    return _SHIPPED.get(folder, folder)


def _candidates(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yield modules that may be at fault, with their files, the most certain first."""
    for one in _chain(error):
        if isinstance(one, ImportError) and one.name and one.path:
            yield one.name, one.path
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        space = frame.f_globals
        name, file = space.get("__name__"), space.get("__file__")
        if not isinstance(name, str) or not isinstance(file, str) or name.partition(".")[0] in _NOT_USERS:
            continue
        # The globals of a function that was pickled by value have the file of the submitting program.
        if frame.f_code.co_name == "<module>" or getattr(sys.modules.get(name), "__dict__", None) is space:
            yield name, file


def _top_of(file: str) -> str:
    """The top-level module that the file belongs to; empty if it is not below the search path. (The error of an
    extension module has the last part of its name only.)"""
    roots = [os.path.join(folder, "") for folder in sys.path if folder]
    root = max((root for root in roots if file.startswith(root)), key=len, default="")
    return file.removeprefix(root).partition(os.sep)[0].partition(".")[0] if root else ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _file_of(top: str) -> str:
    """The file of the copy that an import in this process finds; empty if there is none."""
    loaded = getattr(sys.modules.get(top), "__file__", None)
    if isinstance(loaded, str):
        return loaded
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    folders = list(spec.submodule_search_locations or ())
    return spec.origin or (folders[0] if folders else "")


def _clusters_own(top: str) -> str:
    """The copy that an import would find without the runtime_env; empty if there is none."""
    own = [folder for folder in sys.path if folder and _RESOURCES not in Path(folder).parts]
    spec = importlib.machinery.PathFinder.find_spec(top, own)
    return (spec.origin or "") if spec else ""
