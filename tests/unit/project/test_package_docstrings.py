"""The docstring of each package names where to start reading, and what imports it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import ray_multicluster_scheduler

ROOT = Path(ray_multicluster_scheduler.__file__).parent
PACKAGES = sorted(path.parent for path in ROOT.rglob("__init__.py"))
NAME = re.compile(r"[\w/]+(?:\.\w+)*")


def _names_a_module(doc: str, package: Path) -> bool:
    """True if the text names a module or folder of the package."""
    paths = (package / name.removesuffix(".py").replace(".", "/") for name in NAME.findall(doc))
    return any(path.is_dir() or path.with_suffix(".py").exists() for path in paths)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_package_docstring_names_start_and_importers(package: Path) -> None:
    doc = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    assert re.search(r"\bstart\b", doc, re.IGNORECASE), "name where to start reading"
    assert _names_a_module(doc, package), "name the module to start with"
    assert re.search(r"\bimport|\buse[sd]?\b", doc, re.IGNORECASE), "name what may import the package"
