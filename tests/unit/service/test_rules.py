"""A route that does not say who may use it is not served."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import APIRouter, FastAPI

from ray_multicluster_scheduler.control_plane.admin_api import create_app as create_app_module
from ray_multicluster_scheduler.control_plane.admin_api.access.rules import Rule, needs, without_rule
from ray_multicluster_scheduler.control_plane.admin_api.routes import probes
from tests.unit.service.service_plane import ServicePlane


def test_routes_without_a_rule_are_named() -> None:
    app = FastAPI()
    router = APIRouter(prefix="/api/v1")

    @router.get("/good", **needs(Rule.KNOWN))
    @router.post("/bad")
    async def either() -> None: ...

    app.include_router(router)
    assert without_rule(app.openapi()) == ["POST /api/v1/bad"]


def test_a_service_does_not_begin_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    careless = APIRouter()

    @careless.get("/careless")
    async def careless_route() -> None: ...

    careless.include_router(probes.router)
    monkeypatch.setattr(create_app_module.probes, "router", careless)
    plane = ServicePlane(tmp_path)
    try:
        with pytest.raises(RuntimeError, match="nobody said who may use GET /careless"):
            create_app_module.create_app(plane.runtime)
    finally:
        plane.stop()
