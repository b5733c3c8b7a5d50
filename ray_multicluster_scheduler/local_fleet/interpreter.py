"""Find the Python interpreter that has Ray: usually a separate venv, so that clusters share no packages with us."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config.home import expanded, rmcs_home

_HOW = (
    "run `make setup-ray` in the source checkout, or make one with "
    "`python3 -m venv ~/.rmcs/ray-venv && ~/.rmcs/ray-venv/bin/pip install 'ray[default]'`, "
    "or set RMCS_RAY_PYTHON to a Python that has ray[default]."
)


def find_ray_python(ray_python: str | Path | None = None) -> Path:
    """The interpreter that starts local clusters. Raises ConfigurationError if there is none."""
    for origin, named in (("ray_python", ray_python), ("RMCS_RAY_PYTHON", os.environ.get("RMCS_RAY_PYTHON"))):
        if named:
            return _checked(expanded(named, origin).absolute(), origin)
    for path in _default_interpreters():
        if os.access(path, os.X_OK):
            return path
    if importlib.util.find_spec("ray") is not None:
        return Path(sys.executable)
    searched = ", ".join(str(path) for path in _default_interpreters())
    raise ConfigurationError(f"No Python with Ray for a local fleet (searched {searched}).", next_step=_HOW)


def _checked(python: Path, origin: str) -> Path:
    # Symlinks stay as they are: a venv's python is a link, and resolving it leaves the venv.
    if python.is_file() and os.access(python, os.X_OK):
        return python
    raise ConfigurationError(f"{origin} names {python}, which is not a program that can be run.", next_step=_HOW)


def _default_interpreters() -> Iterator[Path]:
    checkout = Path(__file__).absolute().parents[2]
    seen = dict.fromkeys((checkout / ".venv-ray", Path.cwd() / ".venv-ray", rmcs_home().absolute() / "ray-venv"))
    for venv in seen:
        yield venv / "bin" / "python"
