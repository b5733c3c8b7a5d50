"""A route that does not say who may use it is not served."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import APIRouter
from starlette.websockets import WebSocket

from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import (
    Rule,
    needs,
    needs_of_socket,
    routes_without_rule,
)
from ray_multicluster_scheduler.control_plane.admin_api.http import app as create_app_module
from tests.unit.service.service_plane import ServicePlane


def test_routes_without_a_rule_are_named() -> None:
    router, inner = APIRouter(prefix="/api/v1"), APIRouter()

    @router.get("/good", **needs(Rule.KNOWN))
    @router.post("/bad")
    async def either() -> None: ...

    @router.websocket("/careful")
    @needs_of_socket(Rule.SEE)
    async def careful(websocket: WebSocket) -> None: ...

    @router.websocket("/careless")
    async def careless(websocket: WebSocket) -> None: ...

    assert routes_without_rule(router.routes) == ["/api/v1/bad", "/api/v1/careless"]
    router.include_router(inner)
    assert len(routes_without_rule(router.routes)) == 3  # nobody sees what is inside of another router


def test_a_service_does_not_begin_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    careless = APIRouter()

    @careless.get("/careless")
    async def careless_route() -> None: ...

    monkeypatch.setattr(create_app_module, "ROUTERS", (*create_app_module.ROUTERS, careless))
    plane = ServicePlane(tmp_path)
    try:
        with pytest.raises(RuntimeError, match="declare no rule: /careless"):
            create_app_module.create_app(plane.runtime, Access(None))
    finally:
        plane.stop()
