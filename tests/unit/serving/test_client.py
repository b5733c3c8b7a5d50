"""TaskInstanceClient and the HTTP client below it, against real servers that behave well and badly."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import pytest

from ray_multicluster_scheduler.common.exception import InstanceError
from ray_multicluster_scheduler.serving import InstanceStatusResponse, TaskInstance, TaskInstanceClient
from ray_multicluster_scheduler.serving.router.http_client import HttpError, HttpPool, _Connection
from tests.support.serving_instances import StubInstance

Start = Callable[..., StubInstance]


def test_sync_calls(instance: Start) -> None:
    stub = instance("ocr", replicas=3)
    with TaskInstanceClient(f"http://{stub.address}") as client:
        assert client.get_status() == InstanceStatusResponse(
            instance_id=stub.address, model_type="ocr", replicas_running=3, queue_size=0, status="running"
        )
        answer = client.submit({"page": 1}, task_id="t", model_name="ocr", metadata={"n": 1})
        assert answer.finished
        assert answer.result == {"echo": {"page": 1}, "instance": stub.address}
        assert client.predict() == (12.5, 2.0)
        assert TaskInstance("u", client).instance.get_status().model_type == "ocr"
    client.close()
    assert stub.received == [{"model_name": "ocr", "task_input": {"page": 1}, "metadata": {"n": 1}, "task_id": "t"}]


async def test_async_calls(instance: Start) -> None:
    stub = instance()
    client = TaskInstanceClient(f"http://{stub.address}/")
    assert (await client.get_status_async()).model_type == "ocr"
    answers = await asyncio.gather(
        *(client.submit_async({"n": n}, task_id=str(n), model_name="ocr") for n in range(20))
    )
    assert sorted(answer.task_id or "" for answer in answers) == sorted(str(n) for n in range(20))
    await client.close_async()


def test_a_port_that_nobody_listens_on_is_refused_before_anything_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with (
        TaskInstanceClient(f"http://127.0.0.1:{port}") as client,
        pytest.raises(InstanceError, match=str(port)) as failed,
    ):
        client.get_status()
    assert not failed.value.sent


class RawServer:
    """Answers each request with the next of the given byte strings; None closes the connection instead."""

    def __init__(self, *answers: bytes | None) -> None:
        self._answers = list(answers)
        self.connections = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):
            while True:
                received = b""
                while b"\r\n\r\n" not in received:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    received += piece
                answer = self._answers.pop(0) if self._answers else None
                if answer is None:
                    return
                connection.sendall(answer)
                if b"connection: close" in answer or b"until-close" in answer:
                    return

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def raw() -> Iterator[Callable[..., RawServer]]:
    servers: list[RawServer] = []

    def start(*answers: bytes | None) -> RawServer:
        servers.append(RawServer(*answers))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def plain(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


async def test_connections_are_kept_and_used_again(raw: Callable[..., RawServer]) -> None:
    server = raw(plain(b"one"), CHUNKED, plain(b""), plain(b"four"))
    pool = HttpPool(server.url)
    bodies = [(await pool.fetch("GET", "/"))[1] for _ in range(4)]
    assert bodies == [b"one", b"abcde", b"", b"four"]
    assert server.connections == 1
    pool.close()


async def test_a_body_without_a_length_ends_with_the_connection(raw: Callable[..., RawServer]) -> None:
    server = raw(b"HTTP/1.1 200 OK\r\nx: until-close\r\n\r\nall of it", plain(b"next"))
    pool = HttpPool(server.url)
    assert (await pool.fetch("GET", "/"))[1] == b"all of it"
    assert (await pool.fetch("GET", "/"))[1] == b"next"
    assert server.connections == 2
    pool.close()


async def test_an_interim_answer_is_skipped(raw: Callable[..., RawServer]) -> None:
    pool = HttpPool(raw(b"HTTP/1.1 100 Continue\r\n\r\n" + plain(b"x")).url)
    assert (await pool.fetch("GET", "/"))[:2] == (200, b"x")
    pool.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "closed"),
        (b"garbage garbage\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\nconnection: close\r\n\r\nshort", "closed"),
        (plain(b"x" * 2_000_000), "more than 1,000 bytes"),
    ],
)
async def test_bad_answers_are_errors_and_their_connections_are_not_used_again(
    raw: Callable[..., RawServer], answer: bytes | None, message: str
) -> None:
    server = raw(answer, plain(b"fine"))
    pool = HttpPool(server.url)
    with pytest.raises(HttpError, match=message) as failed:
        await pool.fetch("GET", "/", limit=1000)
    assert failed.value.sent
    assert (await pool.fetch("GET", "/"))[:2] == (200, b"fine")
    assert server.connections == 2
    pool.close()


async def test_a_cancelled_request_closes_its_connection(instance: Start) -> None:
    stub = instance(seconds=lambda task: 60)
    client = TaskInstanceClient(f"http://{stub.address}")
    request = asyncio.create_task(client.submit_async({}, task_id="t", model_name="ocr"))
    while not stub.running:
        await asyncio.sleep(0.01)
    request.cancel()
    while not stub.cancelled:
        await asyncio.sleep(0.01)
    await client.close_async()


async def test_a_large_answer_arrives_in_pieces_and_receiving_pauses(raw: Callable[..., RawServer]) -> None:
    body = bytes(range(256)) * 40_000  # 10 MB
    pool = HttpPool(raw(plain(body)).url)
    async with pool.request("GET", "/") as response:
        pieces = [piece async for piece in response.pieces()]
    assert b"".join(pieces) == body
    assert len(pieces) > 1
    pool.close()


async def test_a_server_that_does_not_answer_times_out(instance: Start) -> None:
    stub = instance(seconds=lambda task: 60)
    pool = HttpPool(f"http://{stub.address}")
    with pytest.raises(HttpError, match=r"0\.1 s"):
        await pool.fetch("POST", "/queue/submit", body=b'{"task_id": "x", "task_input": 1}', timeout=0.1)
    pool.close()


@pytest.mark.parametrize("answer", [plain(b"[1]"), plain(b"no json"), plain(b"oops", "500 Server Error")])
def test_answers_that_make_no_sense_are_instance_errors(raw: Callable[..., RawServer], answer: bytes) -> None:
    with TaskInstanceClient(raw(answer).url) as client, pytest.raises(InstanceError) as failed:
        client.get_status()
    assert failed.value.status == (500 if b"500" in answer else None)


def test_wrong_fields_of_an_instance_are_named(raw: Callable[..., RawServer]) -> None:
    body = b'{"deployed_model": {"model_name": "m", "replicas": "many"}}'
    with TaskInstanceClient(raw(plain(body)).url) as client, pytest.raises(InstanceError, match="replicas_running"):
        client.get_status()
    with TaskInstanceClient(raw(plain(b'{"deployed_model": []}')).url) as client:
        assert client.get_status().model_type is None


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:80", "http://"])
async def test_an_address_that_is_not_http_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no http address"):
        HttpPool(url)


async def test_a_second_answer_is_no_part_of_the_first(raw: Callable[..., RawServer]) -> None:
    server = raw(plain(b"one") + plain(b"two", "500 Server Error"), plain(b"three"))
    pool = HttpPool(server.url)
    assert (await pool.fetch("GET", "/"))[:2] == (200, b"one")
    assert (await pool.fetch("GET", "/"))[:2] == (200, b"three")
    assert server.connections == 2
    pool.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * 3_000_000,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 500_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000,
        CHUNKED[:-2] + b"x: y\r\n" * 500_000,
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nx",
    ],
)
async def test_endless_headers_and_other_protocols_are_errors(raw: Callable[..., RawServer], answer: bytes) -> None:
    pool = HttpPool(raw(answer).url)
    with pytest.raises(HttpError, match="not HTTP"):
        await pool.fetch("GET", "/", timeout=60)
    pool.close()


@pytest.mark.parametrize("host", ["a..b", "x" * 200])
async def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(HttpError, match="no name") as failed:
        await HttpPool(f"http://{host}:80").fetch("GET", "/")
    assert not failed.value.sent


def test_a_transport_that_is_no_subclass_of_asyncios_is_used() -> None:
    """As those of uvloop, which uvicorn uses where it is installed."""

    class Transport:
        sent = b""

        def writelines(self, pieces: Iterable[bytes]) -> None:
            self.sent += b"".join(pieces)

    connection, transport = _Connection(), Transport()
    connection.connection_made(cast(asyncio.Transport, transport))
    connection.send(b"head", b"body")
    assert transport.sent == b"headbody"


async def test_each_event_loop_has_connections_of_its_own(instance: Start) -> None:
    """An instance of a scheduler, whose loop uses the client, may be asked by the sync methods, too."""
    stub = instance()
    client = TaskInstanceClient(f"http://{stub.address}")
    await client.get_status_async()
    (here,) = client.pool._kept
    kept = client.pool._kept[here][0][0]
    assert (await asyncio.to_thread(client.get_status)).model_type == "ocr"
    assert len(client.pool._kept) == 2
    assert list(client.pool._kept[here][0]) == [kept]
    await asyncio.to_thread(client.close)
    assert kept.usable
    assert list(client.pool._kept) == [here]
    await client.get_status_async()
    assert list(client.pool._kept[here][0]) == [kept], "it was used again"
    await client.close_async()
    assert not client.pool._kept


def test_connections_of_loops_that_ended_are_forgotten(instance: Start) -> None:
    with TaskInstanceClient(f"http://{instance().address}") as client:
        ended = asyncio.new_event_loop()
        client.pool._kept[ended] = (deque(), set())
        ended.close()
        client.get_status()
        assert ended not in client.pool._kept
