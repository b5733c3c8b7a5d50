"""Which of the user's own modules a pickle needs, and where they are."""

from __future__ import annotations

import functools
import site
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from ray_multicluster_scheduler.common.logging import get_logger

_log = get_logger(__name__)
_told: set[Path] = set()
_OURS = "ray_multicluster_scheduler"


def modules_to_ship(modules: Iterable[str]) -> list[Path]:
    """The top-level packages and modules among these that no cluster can have: the user's own."""
    tops = {name.partition(".")[0] for name in modules if name}
    places = [place for top in sorted(tops) if (place := _own_place(top)) is not None]
    for place in places:
        if place not in _told:
            _told.add(place)
            _log.info("%s is shipped to the clusters that run functions from it", place)
    return places


def _own_place(top: str) -> Path | None:
    if top in ("__main__", "__mp_main__", _OURS) or top in sys.stdlib_module_names:
        return None
    module = sys.modules.get(top)
    return _place(getattr(module, "__file__", None), tuple(getattr(module, "__path__", ())))


@functools.cache
def _place(file: str | None, folders: tuple[str, ...]) -> Path | None:
    """What to ship, by where the module was loaded from."""
    if file is None:
        # A namespace package has folders only; a built-in or a notebook's module has neither.
        return Path(folders[0]) if len(folders) == 1 and not _installed(Path(folders[0])) else None
    path = Path(file).resolve()
    if _installed(path):
        return None
    return path.parent if path.name == "__init__.py" else path


def _installed(path: Path) -> bool:
    """Is it part of an installation, which the cluster has (or needs) one of its own?"""
    roots = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots |= {*site.getsitepackages(), site.getusersitepackages()}
    return any(path.is_relative_to(Path(root).resolve()) for root in roots if root)
