"""The public name ``control_plane.admin_api.create_app``: it makes an app that answers HTTP requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from ray_multicluster_scheduler.control_plane.admin_api import create_app
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.http.http_server import http_server, listen
from tests.unit.client_api.control_plane import until
from tests.unit.service.service_plane import ServicePlane

pytestmark = pytest.mark.usefixtures("leak_check")


def test_the_app_answers_an_http_request(tmp_path: Path) -> None:
    plane = ServicePlane(tmp_path / "state")
    with listen("127.0.0.1", 0) as listener:
        server = http_server(create_app(plane.runtime, Access(None)))
        serving = plane.runtime.start(server.serve(sockets=[listener]))
        until(lambda: server.started)
        try:
            with urlopen(f"http://127.0.0.1:{listener.getsockname()[1]}/healthz", timeout=30) as response:
                assert (response.status, json.load(response)) == (200, {"status": "ok"})
        finally:
            server.should_exit = True
            serving.result(20)
            plane.stop()


def test_importing_the_package_loads_no_web_framework() -> None:
    code = (
        "import sys, ray_multicluster_scheduler.control_plane.admin_api as package; "
        "assert 'fastapi' not in sys.modules; package.create_app; assert 'fastapi' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
