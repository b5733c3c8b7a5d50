"""Stub instances of a model in a process of their own; each listens on a free port of the loopback interface.

python -m bench._serving_stub 20,20,80,80

The argument gives the milliseconds that each instance takes for a request of size 1; 0 answers at once. An instance
with a time serves one request after another. A request states its size in millionths as ``seed``, a field that every
proxy passes on. The process prints its ports, and exits when stdin is closed. A line on stdin asks for the ``ends`` of
numbered requests, or for how many requests were ``answered``.
"""

from __future__ import annotations

import asyncio
import json
import queue
import re
import sys
import threading
import time
from functools import partial

import httptools

MODEL = "bench"
_SIZE, _NUMBER = re.compile(rb'"seed":\s*(\d+)'), re.compile(rb'"number":\s*(\d+)')


def _answer(status: str, document: object) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        status.encode(),
        len(body),
        body,
    )


_COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1700000000,
    "model": MODEL,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
}
_ANSWERS = {
    b"/v1/chat/completions": _answer("200 OK", _COMPLETION),
    b"/queue/submit": _answer("200 OK", {"status": "success", "result": {"text": "Yes."}}),
    b"/v1/models": _answer("200 OK", {"object": "list", "data": [{"id": MODEL, "object": "model"}]}),
    b"/health": _answer("200 OK", {}),
    b"/info": _answer(
        "200 OK", {"deployed_model": {"model_name": MODEL, "replicas": 1}, "queue_info": {"length_of_queue": 0}}
    ),
}
_UNKNOWN = _answer("404 Not Found", {"error": "the stub has no such route"})


class Instance:
    """Serves one request after another, in ``ms`` times its size."""

    def __init__(self, ms: float, ends: dict[int, float]) -> None:
        self._ms, self._ends = ms, ends
        self.answered = 0
        self._waiting: queue.SimpleQueue[tuple[float, bytes, asyncio.Transport, bytes]] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        if ms:
            threading.Thread(target=self._serve, daemon=True).start()

    def submit(self, body: bytes, transport: asyncio.Transport, answer: bytes) -> None:
        if self._ms:
            self._waiting.put((time.monotonic(), body, transport, answer))
        else:
            transport.write(answer)

    def _serve(self) -> None:
        """In a thread, whose sleep is more exact than the timers of an event loop."""
        free = 0.0
        while True:
            arrived, body, transport, answer = self._waiting.get()
            size = _SIZE.search(body)
            free = max(free, arrived) + self._ms / 1e3 * (int(size[1]) / 1e6 if size else 1.0)
            time.sleep(max(0.0, free - time.monotonic()))
            number = _NUMBER.search(body)
            if number:
                self._ends[int(number[1])] = time.monotonic()
            self._loop.call_soon_threadsafe(transport.write, answer)


class Connection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body = b"", b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url, self._body = url, b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        answer = _ANSWERS.get(self._url, _UNKNOWN)
        if self._parser.get_method() == b"POST" and answer is not _UNKNOWN:
            self._instance.answered += 1
            self._instance.submit(self._body, self._transport, answer)
        else:
            self._transport.write(answer)


async def main() -> None:
    loop = asyncio.get_running_loop()
    ends: dict[int, float] = {}
    ports, instances = [], []
    for ms in sys.argv[1].split(","):
        instance = Instance(float(ms), ends)
        instances.append(instance)
        server = await loop.create_server(partial(Connection, instance), "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    while question := await asyncio.to_thread(sys.stdin.readline):
        if question.strip() == "ends":
            print(json.dumps(ends), flush=True)
            ends.clear()
        else:
            print(sum(one.answered for one in instances), flush=True)
            for one in instances:
                one.answered = 0


if __name__ == "__main__":
    asyncio.run(main())
