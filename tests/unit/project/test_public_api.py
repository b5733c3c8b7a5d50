"""Importing the package is cheap and needs no dependency; every public name resolves."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ray_multicluster_scheduler as api
from ray_multicluster_scheduler.common import exception

ROOT = Path(__file__).resolve().parents[3]
LOADED = """
import sys
before = set(sys.modules)
import {module}
print("\\n".join(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})))
"""


def loaded_by(module: str) -> set[str]:
    """Top-level modules that a fresh interpreter loads for this import."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(module=module)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["ray_multicluster_scheduler", "ray_multicluster_scheduler.common.model"])
def test_import_needs_only_the_standard_library(module: str) -> None:
    assert loaded_by(module) - set(sys.stdlib_module_names) == {"ray_multicluster_scheduler"}


def test_import_is_lazy() -> None:
    heavy = {"asyncio", "socket", "subprocess", "multiprocessing", "logging"}
    assert not loaded_by("ray_multicluster_scheduler") & heavy


@pytest.mark.parametrize("name", api.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(api, name) is not None
    assert name in dir(api)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="submit_taks"):
        _ = api.submit_taks  # a misspelling on purpose


def test_type_checkers_see_the_exported_names() -> None:
    """The imports under TYPE_CHECKING, the table of homes and __all__ agree."""
    tree = ast.parse(Path(api.__file__).read_text())
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    seen = {
        alias.name: node.module.removeprefix("ray_multicluster_scheduler.")
        for node in guarded.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module != api.__name__
        for alias in node.names
    }
    assert seen == api._MODULE_OF
    assert {*seen, "__version__"} == set(api.__all__)


def test_every_error_is_public() -> None:
    kinds = [kind for kind in vars(exception).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    errors = {kind.__name__ for kind in kinds if kind.__module__ == exception.__name__}
    assert errors <= set(api.__all__)
