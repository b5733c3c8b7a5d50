"""Packages whose names are loaded when they are used."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

PACKAGES = ["control_plane.config", "control_plane.store"]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_that_is_offered_is_there(name: str) -> None:
    package = import_module(f"ray_multicluster_scheduler.{name}")
    assert [one for one in package.__all__ if getattr(package, one, None) is None] == []
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize(
    "module", ["control_plane.config.home", "control_plane.store.state_folder", "app.client_api.remote.service_errors"]
)
def test_a_light_module_stays_light(module: str) -> None:
    code = f"import sys, ray_multicluster_scheduler.{module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pydantic", "apsw", "aiohttp", "asyncio", "yaml"} & set(loaded)
