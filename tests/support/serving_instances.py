"""StubInstance: a real HTTP server that serves a model, well or badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import ClientSession, web

from ray_multicluster_scheduler.serving.client import LoopThread

_MEBIBYTE = b"x" * 2**20
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StubInstance:
    """Serves one task after another, each in ``seconds(task)``. It returns the result in its answer, or, with
    ``callback``, acknowledges at once and reports to that URL. ``handler`` replaces POST /queue/submit."""

    def __init__(
        self,
        model: str = "ocr",
        seconds: Callable[[dict[str, Any]], float] = lambda task: 0.0,
        *,
        replicas: int = 1,
        handler: Handler | None = None,
        port: int = 0,
    ) -> None:
        self.model, self.seconds, self.replicas, self.handler = model, seconds, replicas, handler
        self.callback: str | None = None
        self.info: dict[str, Any] = {}
        """Replaces parts of the answer to GET /info."""
        self.probes = 0
        self.hold: asyncio.Event | None = None
        self.received: list[dict[str, Any]] = []
        self.running = self.most_running = self.cancelled = 0
        self.port = port
        self._thread = LoopThread("stub-instance")
        self._work: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None
        self._thread.run(self._start())

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Close the port and all connections. Idempotent."""
        if self._runner is not None:
            self._thread.run(self._stop())
            self._runner = None
            self._thread.stop()

    def hold_tasks(self) -> None:
        """Finish no task until :meth:`release_tasks`."""
        self.hold = asyncio.Event()

    def release_tasks(self) -> None:
        assert self.hold is not None
        self._thread.loop.call_soon_threadsafe(self.hold.set)

    def __enter__(self) -> StubInstance:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_get("/info", self._info)
        app.router.add_post("/queue/submit", self.handler or self._submit)
        app.router.add_post("/queue/predict", self._predict)
        self._slots = asyncio.Semaphore(self.replicas)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def _stop(self) -> None:
        assert self._runner is not None
        for one in self._work:
            one.cancel()
        await self._runner.cleanup()

    async def _info(self, request: web.Request) -> web.Response:
        self.probes += 1
        return web.json_response(
            {
                "status": "running",
                "deployed_model": {"model_name": self.model, "replicas": self.replicas},
                "queue_info": {"length_of_queue": self.running},
                **self.info,
            }
        )

    async def _predict(self, request: web.Request) -> web.Response:
        return web.json_response({"expected_ms": 12.5, "error_ms": 2.0, "queue_size": self.running})

    async def _submit(self, request: web.Request) -> web.Response:
        task = await request.json()
        self.received.append(task)
        if self.callback is not None:
            work = asyncio.create_task(self._run_and_report(task))
            self._work.add(work)
            work.add_done_callback(self._work.discard)
            return web.json_response({"status": "success", "task_id": task["task_id"]})
        took = await self._run(task)
        return web.json_response(
            {"status": "success", "task_id": task["task_id"], "result": self._result(task), "execution_time": took}
        )

    async def _run(self, task: dict[str, Any]) -> float:
        seconds = self.seconds(task)
        self.running += 1
        try:
            async with self._slots:
                self.most_running = max(self.most_running, self.running)
                if self.hold is not None:
                    await self.hold.wait()
                await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return seconds * 1000

    def _result(self, task: dict[str, Any]) -> dict[str, Any]:
        return {"echo": task["task_input"], "instance": self.address}

    async def _run_and_report(self, task: dict[str, Any]) -> None:
        took = await self._run(task)
        report = {
            "task_id": task["task_id"],
            "instance_id": self.address,
            "execution_time": took,
            "result": self._result(task),
        }
        async with ClientSession() as session, session.post(f"{self.callback}/result/submit", json=report) as answer:
            answer.raise_for_status()


async def one_gigabyte(request: web.Request) -> web.StreamResponse:
    """A handler that answers with 1 GiB."""
    answer = web.StreamResponse()
    await answer.prepare(request)
    for _ in range(1024):
        await answer.write(_MEBIBYTE)
    return answer


class OpenAIStub:
    """A server of OpenAI's API with one model, which answers with the words of the last message, backwards.

    ``seconds`` are spent before each word of an answer. ``die_after`` closes the connection after so many words.
    """

    def __init__(self, model: str = "small-llm", *, seconds: float = 0.0, port: int = 0) -> None:
        self.model, self.seconds, self.port = model, seconds, port
        self.die_after: int | None = None
        self.status = 200
        self.gigabyte = False
        """Answer with 1 GiB."""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.sent: list[bytes] = []
        self.running = self.cancelled = 0
        self._thread = LoopThread("openai-stub")
        self._runner: web.AppRunner | None = None
        self._thread.run(self._start())

    def stop(self) -> None:
        """Idempotent."""
        if self._runner is not None:
            self._thread.run(self._runner.cleanup())
            self._runner = None
            self._thread.stop()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/embeddings", self._embed)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def _embed(self, request: web.Request) -> web.Response:
        body = await request.json()
        row = {"object": "embedding", "index": 0, "embedding": [float(len(body["input"]))]}
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return web.json_response({"object": "list", "model": self.model, "data": [row], "usage": usage})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.status != 200:
            return web.json_response({"error": {"message": "out of order"}}, status=self.status)
        if self.gigabyte:
            return await one_gigabyte(request)
        self.running += 1
        try:
            return await self._answer(request, body)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        words = body["messages"][-1]["content"].split()[::-1]
        if not body.get("stream"):
            await asyncio.sleep(self.seconds * len(words))
            if self.die_after is not None:
                assert request.transport is not None
                request.transport.abort()
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": " ".join(words)}}
            return web.json_response({**self._envelope("chat.completion"), "choices": [choice]})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for index, word in enumerate(words):
            await asyncio.sleep(self.seconds)
            if index == self.die_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            delta = {"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}
            await self._write(response, {**self._envelope("chat.completion.chunk"), "choices": [delta]})
        await self._write(response, "[DONE]")
        return response

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": "x", "object": kind, "created": 1, "model": self.model}

    async def _write(self, response: web.StreamResponse, event: Any) -> None:
        text = event if isinstance(event, str) else json.dumps(event)
        self.sent.append(f"data: {text}\n\n".encode())
        await response.write(self.sent[-1])
