"""Code that is shipped to a cluster is importable there, with only Ray and its dependencies installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

_NOT_THERE = ("apsw", "cryptography", "fastapi", "rich", "starlette", "typer", "uvicorn", "websockets")
_READ = """
import sys

class NotThere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ImportError(name + " is not there")

sys.meta_path.insert(0, NotThere())
import {module}
"""


@pytest.mark.parametrize(
    "module", ["actors.actor_handle", "actors.actor_reference", "handles.handle", "in_cluster.scheduler"]
)
def test_it_is_importable_without_our_dependencies(module: str) -> None:
    text = _READ.format(absent=_NOT_THERE, module=f"ray_multicluster_scheduler.app.client_api.{module}")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
