"""environment.yml gives the same installation as pip with pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def conda() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "environment.yml").read_text())


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_environment_name(conda: dict[str, Any]) -> None:
    assert conda["name"] == "ts"


def test_python_has_the_same_bound(conda: dict[str, Any], project: dict[str, Any]) -> None:
    wanted = [Requirement(entry) for entry in conda["dependencies"] if isinstance(entry, str)]
    python = next(entry for entry in wanted if entry.name == "python")
    assert python.specifier == SpecifierSet(project["requires-python"])


def test_pip_installs_this_package_with_an_extra_that_exists(conda: dict[str, Any], project: dict[str, Any]) -> None:
    assert "pip" in conda["dependencies"], "conda warns, and may pick another pip, when it is not listed"
    (section,) = [entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict)]
    (line,) = section
    flag, _, target = line.partition(" ")
    folder, _, extras = target.partition("[")
    assert flag == "-e"
    assert (ROOT / folder / "pyproject.toml").samefile(ROOT / "pyproject.toml")
    assert extras.rstrip("]").split(",") == ["dev"]
    assert "dev" in project["optional-dependencies"]


def test_no_other_dependency_is_pinned_again(conda: dict[str, Any]) -> None:
    names = {Requirement(entry).name for entry in conda["dependencies"] if isinstance(entry, str)}
    assert names == {"python", "pip"}
