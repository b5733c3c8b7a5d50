"""Server: the stand-alone serving application, on a free port of this process."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import uvicorn
import websockets.sync.client

from ray_multicluster_scheduler.serving import SwarmPilotScheduler, api


class Server:
    """The application in a real server on a free port."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._app = api.ServingApp()
        self._server = uvicorn.Server(uvicorn.Config(self._app, log_config=None, timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def _run(self) -> None:
        asyncio.run(self._server.serve([self._listener]))

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()

    @property
    def scheduler(self) -> SwarmPilotScheduler:
        found: SwarmPilotScheduler = self._app.routes.state.serving
        return found

    def call(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """GET, or POST with a body; the status and the JSON of the answer."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        try:
            answer = urllib.request.urlopen(urllib.request.Request(self.url + path, content, sent), timeout=60)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            if answer.status >= 400:
                assert answer.headers["content-type"] == "application/problem+json"
            assert (answer.status in {429, 503}) == ("retry-after" in answer.headers)
            return answer.status, json.loads(answer.read())

    def ok(self, path: str, body: Any = None) -> Any:
        status, answer = self.call(path, body)
        assert status == 200, answer
        return answer

    def result(self, task_id: str) -> Any:
        """Wait until a task has ended."""
        end = time.monotonic() + 60
        while (task := self.ok(f"/task/query?task_id={task_id}"))["task_status"] not in {"completed", "failed"}:
            assert time.monotonic() < end
            time.sleep(0.01)
        return task

    def socket(self) -> websockets.sync.client.ClientConnection:
        return websockets.sync.client.connect(f"ws://127.0.0.1:{self.port}/ws/result_submit")
