"""A service over HTTP on a free port of this machine, in this process; stopped and started again on the same one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.admin_api.access.tokens import TokenStore
from ray_multicluster_scheduler.control_plane.admin_api.http.app import create_app
from ray_multicluster_scheduler.control_plane.admin_api.http.http_server import http_server, listen
from ray_multicluster_scheduler.control_plane.admin_api.http.uvicorn_protocols import HttpLimits
from ray_multicluster_scheduler.control_plane.runtime import wire
from tests.unit.client_api.control_plane import until
from tests.unit.service.service_plane import BLOBS, CPUS, ServicePlane, a_task, running

USER = "root-of-tests"


class HttpService:
    """``plane`` is its control plane. With ``auth="token"`` it asks for tokens, of which ``token`` has all roles; most
    tests are about other things and need none."""

    def __init__(
        self,
        folder: Path,
        *,
        auth: str = "none",
        origins: Sequence[str] = (),
        http_limits: HttpLimits | None = None,
        **values: Any,
    ) -> None:
        self.plane = ServicePlane(folder, **values)
        self.auth, self.origins, self.http_limits, self.token = auth, origins, http_limits, ""
        self.port = 0
        self._serving: Future[None] | None = None
        self._listen()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.plane.start()
        self._listen()

    def stop(self) -> None:
        """As serve() does; every connection is cut off."""
        self._end_serving()
        self.plane.stop()

    def restart(self) -> None:
        self._end_serving()
        self.plane.restart()
        self._listen()

    def _listen(self) -> None:
        self._listener = listen("127.0.0.1", self.port)
        self.port = self._listener.getsockname()[1]
        self.app = create_app(self.plane.runtime, self._access())
        self._server = http_server(self.app, limits=self.http_limits)
        self._serving = self.plane.runtime.start(self._server.serve(sockets=[self._listener]))
        until(lambda: self._server.started)

    def _access(self) -> Access:
        self.book = TokenStore(self.plane.store)
        if self.auth == "token" and not self.token:
            self.token = self.token_for(USER, *Role)
        return Access(self.book if self.auth == "token" else None, origins=self.origins)

    def token_for(self, user: str, *roles: Role, **values: Any) -> str:
        return self.book.create(user, roles, **values)[1]

    def _end_serving(self) -> None:
        if self._serving is not None:
            self.plane.runtime.call_soon(self.app.state.mailboxes.close)
            self.plane.runtime.call_soon(self.plane.runtime.event_publisher.close)
            self._server.should_exit = True
            self._serving.result(20)
            self.plane.runtime.run(self.app.state.deployments.close())
            self.plane.runtime.run(self.app.state.serving.close_async())
            self._listener.close()
            self._serving = None

    # ---- asking

    def ask(
        self,
        method: str,
        path: str,
        output: object = None,
        *,
        data: bytes | None = None,
        token: str | None = None,
        headers: Mapping[str, str] = {},
    ) -> tuple[int, Any]:
        """Status and answer; JSON is read. With its own token, unless another one, or "" for none, is given."""
        body = data if data is not None or output is None else json.dumps(output).encode()
        bearer = self.token if token is None else token
        sent = {"Content-Type": "application/json", **({"Authorization": f"Bearer {bearer}"} if bearer else {})}
        request = Request(f"{self.address}{path}", body, {**sent, **headers}, method=method)
        try:
            with urlopen(request, timeout=30) as response:
                return response.status, _read(response)
        except HTTPError as error:
            with error:
                return error.code, _read(error)

    def get(self, path: str) -> Any:
        status, answer = self.ask("GET", path)
        assert status == 200, answer
        return answer

    def post(self, path: str, output: object = None) -> Any:
        status, answer = self.ask("POST", path, output if output is not None else {})
        assert status == 200, answer
        return answer

    def submit(self, task_id: str, cpus: float = 1, **values: Any) -> dict[str, Any]:
        """One with a payload."""
        answer: dict[str, Any] = self.post("/api/v1/items", body(a_task(task_id, cpus, **values)))
        return answer

    def item(self, item_id: str) -> Any:
        """The item as the control plane has it."""
        found = self.plane.runtime.item(item_id)
        assert found is not None
        return found

    def fill(self) -> Any:
        """Let item t run on all eight CPUs while item u waits; returns t."""
        self.submit("t", CPUS)
        item = self.item("t")
        running(item)
        self.submit("u", CPUS)
        until(lambda: self.plane.runtime.call_and_wait(self.plane.runtime.machine.queue_depths))
        return item

    def __enter__(self) -> HttpService:
        return self

    def __exit__(self, *_: object) -> None:
        if self._serving is not None:
            self.stop()


def body(task: TaskDescription, **values: Any) -> dict[str, Any]:
    return {"task": task.to_dict(), "blobs": wire.bytes_to_wire(BLOBS), **values}


def _read(response: Any) -> Any:
    data = response.read()
    return json.loads(data) if "json" in response.headers.get("Content-Type", "") else data
