"""TaskInstanceClient calls one instance, sync and async; TaskInstance pairs it with the UUID of its registration."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from ray_multicluster_scheduler.common.exception import InstanceError
from ray_multicluster_scheduler.serving.models import InstanceStatusResponse, InstanceSubmitResponse
from ray_multicluster_scheduler.serving.router.http_client import MAX_BODY, Headers, HttpError, HttpPool

T = TypeVar("T")
_JSON: Headers = [(b"content-type", b"application/json")]


class LoopThread:
    """An event loop on a daemon thread, for callers that have none."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def stop(self) -> None:
        """Stop the loop, and wait for its thread. Idempotent."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


class TaskInstanceClient:
    """Calls an instance at ``base_url``, such as "http://127.0.0.1:8100" or "127.0.0.1:8100".

    Connections belong to the event loop of their caller; the sync methods use a loop on a thread of their own.
    ``addresses`` are used instead of those that the host's name resolves to.
    All raise InstanceError. Raises ValueError for a URL that is no HTTP address.
    """

    stored = True
    """Whether a journal keeps its registration."""

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float = 10.0,
        connect_timeout: float = 2.0,
        max_body: int = MAX_BODY,
        addresses: Sequence[str] = (),
    ) -> None:
        self.base_url = (base_url if "://" in base_url else f"http://{base_url}").rstrip("/")
        self.instance_id = self.base_url.partition("://")[2]
        """host:port, as the instance is called in results."""
        self.pool = HttpPool(self.base_url, connect_timeout=connect_timeout, addresses=addresses)
        self.addresses = addresses
        self._timeout, self._max_body = timeout, max_body
        self._thread: LoopThread | None = None

    def use_addresses(self, addresses: Sequence[str]) -> None:
        """Connect to these from now on."""
        self.addresses = self.pool.addresses = addresses

    # ---- async

    async def get_status_async(self) -> InstanceStatusResponse:
        """What the instance reports at GET /info."""
        body = await self._json("GET", "/info", None, self._timeout)
        deployed, queue = body.get("deployed_model") or {}, body.get("queue_info") or {}
        if not isinstance(deployed, dict) or not isinstance(queue, dict):
            raise InstanceError(f"{self.base_url}/info has no deployed_model with a model_name.")
        return self._checked(
            InstanceStatusResponse,
            {
                "instance_id": self.instance_id,
                "model_type": deployed.get("model_name"),
                "replicas_running": deployed.get("replicas") or 0,
                "status": str(body.get("instance_status") or body.get("status") or "unknown"),
                "boot_id": body.get("boot_id"),
                **({} if queue.get("length_of_queue") is None else {"queue_size": queue["length_of_queue"]}),
            },
        )

    async def get_models_async(self) -> list[str]:
        """The names of the models of an OpenAI-style server, from GET /v1/models."""
        body = await self._json("GET", "/v1/models", None, self._timeout)
        rows = body.get("data")
        names = [row.get("id") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        if not names or not all(isinstance(name, str) for name in names):
            raise InstanceError(f"{self.base_url}/v1/models lists no models.")
        return [str(name) for name in names]

    async def submit_async(
        self, task_input: Any, *, task_id: str, model_name: str, metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> InstanceSubmitResponse:  # fmt: skip
        """POST /queue/submit: the acknowledgement, or the result of an instance that answers at once."""
        request = {
            "model_name": model_name,
            "task_input": task_input,
            "metadata": dict(metadata or {}),
            "task_id": task_id,
        }
        body = await self._json("POST", "/queue/submit", request, timeout)
        return self._checked(InstanceSubmitResponse, body)

    async def post_json(self, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """POST a JSON object to any path; returns the JSON object of the answer."""
        return await self._json("POST", path, request, None)

    async def predict_async(self) -> tuple[float, float]:
        """The instance's own forecast of its queue (POST /queue/predict): expected time and its error, in ms."""
        body = await self._json("POST", "/queue/predict", {}, self._timeout)
        try:
            return float(body["expected_ms"]), float(body["error_ms"])
        except (KeyError, TypeError, ValueError):
            raise InstanceError(f"{self.base_url}/queue/predict has no expected_ms and error_ms.") from None

    async def close_async(self) -> None:
        """Close the connections of the running loop."""
        self.pool.close()

    # ---- sync

    def get_status(self) -> InstanceStatusResponse:
        return self._run(self.get_status_async())

    def submit(
        self, task_input: Any, *, task_id: str, model_name: str, metadata: Mapping[str, Any] | None = None
    ) -> InstanceSubmitResponse:
        return self._run(
            self.submit_async(
                task_input, task_id=task_id, model_name=model_name, metadata=metadata, timeout=self._timeout
            )
        )

    def predict(self) -> tuple[float, float]:
        return self._run(self.predict_async())

    def close(self) -> None:
        """Close the connections of the sync methods, and end their thread. Idempotent."""
        if self._thread is not None:
            self._thread.run(self.close_async())
            self._thread.stop()
            self._thread = None

    def __enter__(self) -> TaskInstanceClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- inside

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            self._thread = LoopThread("rmcs-instance-client")
        return self._thread.run(work)

    async def _json(self, method: str, path: str, request: Any, timeout: float | None) -> dict[str, Any]:
        content = b"" if request is None else json.dumps(request, separators=(",", ":")).encode()
        try:
            status, body, headers = await self.pool.fetch(
                method, path, body=content, headers=_JSON if content else (), timeout=timeout, limit=self._max_body
            )
        except HttpError as error:
            failed = InstanceError(f"The instance {self.instance_id} failed: {error}.")
            failed.sent, failed.local = error.sent, error.local
            raise failed from None
        if status >= 400:
            text = body[:200].decode(errors="replace")
            failed = InstanceError(f"The instance {self.instance_id} answered {method} {path} with {status}: {text}.")
            failed.status, failed.retry_after = status, _retry_after(headers)
            raise failed
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise InstanceError(f"The instance {self.instance_id} answered {method} {path} with no JSON object.")
        return found

    def _checked(self, model: type[T], values: Mapping[str, Any]) -> T:
        try:
            return model(**values)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise InstanceError(f"The instance {self.instance_id} sent a wrong {place}: {first['msg']}.") from None


def _retry_after(headers: Headers) -> float | None:
    """Seconds, as the header Retry-After says."""
    text = next((value.decode("latin-1") for name, value in headers if name == b"retry-after"), "")
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """A registered instance: its UUID and its client."""

    uuid: str
    instance: TaskInstanceClient
