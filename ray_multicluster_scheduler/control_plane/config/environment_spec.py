"""Validation of a ``runtime_env``, in clusters.yaml and in submissions."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.control_plane.config.home import expanded

PATH_SEPARATOR = ":"

RAY_KEYS = (
    "working_dir",
    "py_modules",
    "excludes",
    "pip",
    "uv",
    "conda",
    "env_vars",
    "container",
    "image_uri",
    "config",
    "worker_process_setup_hook",
    "py_executable",
    "java_jars",
    "nsight",
)
"""Ray's own keys. Other keys may belong to plugins, so only a likely misspelling of these is refused."""


def normalise_runtime_env(value: object) -> dict[str, Any]:
    """A copy with plain strings as env_vars; a list there is joined with ``:``. Raises ValueError with a sentence."""
    if value is None:
        raise ValueError("is empty; leave the key out, or give a mapping such as {env_vars: {A: b}}")
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping such as {{env_vars: {{A: b}}}}, got {_kind(value)}")
    env = dict(value)
    for key, item in env.items():
        if not isinstance(key, str):
            raise ValueError(f"has the key {key!r}, which is not text")
        if item is None:
            raise ValueError(f"has an empty key {key!r}; leave it out, or give it a value")
        close = [] if key in RAY_KEYS else difflib.get_close_matches(key, RAY_KEYS, 1, cutoff=0.75)
        if close:
            raise ValueError(f"has the unknown key {key!r}; did you mean {close[0]!r}?")
    if "env_vars" in env:
        env["env_vars"] = _variables(env["env_vars"])
    if "working_dir" in env and not isinstance(env["working_dir"], str):
        raise ValueError(f"working_dir: expected a path or URI, got {_kind(env['working_dir'])}")
    for key in ("py_modules", "excludes"):
        if key in env and not _is_list_of_text(env[key]):
            raise ValueError(f"{key}: expected a list of text, got {_kind(env[key])}")
    return env


def absolute_paths(env: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Make local ``working_dir`` and ``py_modules`` absolute; in clusters.yaml they are relative to the file."""
    result = dict(env)
    if "working_dir" in result:
        result["working_dir"] = _absolute(result["working_dir"], base)
    if "py_modules" in result:
        result["py_modules"] = [_absolute(item, base) for item in result["py_modules"]]
    return result


def _absolute(path: str, base: Path) -> str:
    if "://" in path:
        return path
    return str((base / expanded(path, "runtime_env")).absolute().resolve())


def _variables(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"env_vars: expected a mapping of names to values, got {_kind(value)}")
    return {_name(name): _text(name, item) for name, item in value.items()}


def _name(name: object) -> str:
    if not isinstance(name, str) or not name or "=" in name or not _is_valid_in_environment(name):
        raise ValueError(f"env_vars: {name!r} is not the name of a variable")
    return name


def _text(name: str, value: object) -> str:
    """The value as text. YAML reads ``1`` and ``true`` as numbers and truth values."""
    if isinstance(value, str):
        if not _is_valid_in_environment(value):
            raise ValueError(f"env_vars: the value of {name} holds characters that no environment can hold")
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return PATH_SEPARATOR.join(value)
    if isinstance(value, bool):
        raise ValueError(f'env_vars: {name} is a truth value; quote it, for example "{str(value).lower()}"')
    if isinstance(value, (int, float)):
        return str(value)
    raise ValueError(f"env_vars: {name}: expected text, or a list of text to join with ':', got {_kind(value)}")


def _is_valid_in_environment(text: str) -> bool:
    """No NUL, and only what UTF-8 can encode: other values abort Ray's processes."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


def _kind(value: object) -> str:
    names = {"dict": "a mapping", "list": "a list", "str": "text", "NoneType": "nothing"}
    return names.get(type(value).__name__, repr(value))
