"""The program of each contender: the same calls of Ray's API, carried out by `ray` or by our package.

Run as `python -P _program.py KIND ADDRESS` by an interpreter that has that library. Standard input has one JSON object
per line, a request with its numbers; standard output has one answer per line. The end of input is the end of
the program. Only the standard library is imported here: a cluster's interpreter does not have our package.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

SETTLE_S = 2.5
WARM_UP_TIMEOUT_S = 60.0
_BATCH = 50
EMBEDDED = ("rmcs", "rmcs_dial_in", "rmcs_ray_client", "rmcs_no_prefetch")


def noop(index: int) -> tuple[int, str]:
    """A no-op; returns its index and task id, which prove that it was a separate Ray task."""
    import ray  # noqa: PLC0415 - only there where it runs

    return index, ray.get_runtime_context().get_task_id()


def worker() -> int:
    """The id of the process that ran it."""
    return os.getpid()


def add_one(number: int) -> int:
    return number + 1


def echo(data: bytes) -> bytes:
    return data


def make(size: int) -> bytes:
    """That many bytes; making them takes a small part of the time to send them."""
    return bytes([90]) * size


def length(data: bytes) -> int:
    return len(data)


class Counter:
    """Counts its calls, to detect lost, repeated or reordered ones."""

    def __init__(self) -> None:
        self.count = 0

    def inc(self) -> int:
        self.count += 1
        return self.count


class Workloads:
    """Every public method is a request. ``api`` is the module `ray` or `ray_multicluster_scheduler`."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._noop, self._worker = api.remote(noop), api.remote(worker)
        self._add_one, self._echo = api.remote(add_one), api.remote(echo)
        self._make, self._length = api.remote(make), api.remote(length)
        self._counter: Any = None
        self._counted = 0

    def warm_up(self, workers: int) -> float:
        """Seconds until every worker is up and has run the no-op, and Ray has ended idle workers, which would take CPU
        time
        from the measurement."""
        began = time.perf_counter()
        while len(set(self._api.get([self._worker.remote() for _ in range(_BATCH)]))) < workers:
            if time.perf_counter() - began > WARM_UP_TIMEOUT_S:
                raise TimeoutError(f"fewer than {workers} workers served {_BATCH} tasks for {WARM_UP_TIMEOUT_S:g} s")
        settled = time.perf_counter() + SETTLE_S
        while time.perf_counter() < settled:
            self.tasks(2 * _BATCH)
        return time.perf_counter() - began

    def tasks(self, count: int) -> float:
        """No-ops per second, all submitted at once and fetched by one get."""
        began = time.perf_counter()
        values = self._api.get([self._noop.remote(index) for index in range(count)])
        seconds = time.perf_counter() - began
        check_tasks(values, count)
        return count / seconds

    def single_tasks(self, count: int) -> float:
        """Median milliseconds of sequential no-ops."""
        return median_ms(lambda: self._api.get(self._noop.remote(0)), count)

    def open_actor(self) -> None:
        """Create the counter actor and wait for it, if it does not exist yet."""
        if self._counter is None:
            self._counter = self._api.remote(Counter).remote()
        self.actor_calls(_BATCH)

    def actor_calls(self, count: int) -> float:
        """Calls of one actor per second, all submitted at once and fetched by one get."""
        began = time.perf_counter()
        values = self._api.get([self._counter.inc.remote() for _ in range(count)])
        seconds = time.perf_counter() - began
        self._check_count(values, count)
        return count / seconds

    def single_actor_calls(self, count: int) -> float:
        """Median milliseconds of sequential calls of one actor."""
        values: list[int] = []
        figure = median_ms(lambda: values.append(self._api.get(self._counter.inc.remote())), count)
        self._check_count(values, count)
        return figure

    def close_actor(self) -> None:
        """End the counter actor, if it exists."""
        if self._counter is not None:
            self._api.kill(self._counter)
            self._counter, self._counted = None, 0

    def mapped(self, count: int) -> float:
        """Tiny calls per second by our executor's map."""
        with self._api.FleetExecutor() as executor:
            began = time.perf_counter()
            values = list(executor.map(add_one, range(count)))
            seconds = time.perf_counter() - began
        check_map(values, count)
        return count / seconds

    def tiny_tasks(self, count: int) -> float:
        """The same tiny calls per second, each as a task of its own."""
        began = time.perf_counter()
        values = self._api.get([self._add_one.remote(number) for number in range(count)])
        seconds = time.perf_counter() - began
        check_map(values, count)
        return count / seconds

    def echoes(self, size: int, count: int) -> float:
        """Median milliseconds to send that many bytes and get them back."""

        def round_trip() -> None:
            if self._api.get(self._echo.remote(data)) != data:
                raise ValueError(f"{size} bytes came back as others")

        data = os.urandom(size)
        return median_ms(round_trip, count)

    def large_result(self, size: int) -> float:
        """MB per second of a task that returns that many bytes."""
        return megabytes_per_s(size, lambda: len(self._api.get(self._make.remote(size))))

    def large_argument(self, size: int) -> float:
        """MB per second of a task that gets that many bytes."""
        data = make(size)
        return megabytes_per_s(size, lambda: self._api.get(self._length.remote(data)))

    def _check_count(self, values: Sequence[int], count: int) -> None:
        expected = range(self._counted + 1, self._counted + count + 1)
        self._counted += count
        if list(values) != list(expected):
            raise ValueError(f"calls of an actor were lost, repeated or overtaken: got {_short(values)}")


class SocketTransfers:
    """The large values of :class:`Workloads`, over a plain socket between this process and a child of it."""

    def __init__(self, host: str) -> None:
        with socket.create_server((host, 0)) as server:
            command = [sys.executable, "-P", __file__, "peer", f"{host}:{server.getsockname()[1]}"]
            self._child = subprocess.Popen(command)
            self._socket, _ = server.accept()

    def close(self) -> None:
        """Close the socket and wait for the end of the child."""
        self._socket.close()
        self._child.wait()

    def large_result(self, size: int) -> float:
        """MB per second from the child to this process."""

        def receive() -> int:
            self._socket.sendall(b"%d result\n" % size)
            return len(receive_exactly(self._socket, size))

        return megabytes_per_s(size, receive)

    def large_argument(self, size: int) -> float:
        """MB per second from this process to the child."""
        data = make(size)

        def send() -> int:
            self._socket.sendall(b"%d argument\n" % size)
            self._socket.sendall(data)
            return int.from_bytes(receive_exactly(self._socket, 8), "big")

        return megabytes_per_s(size, send)


def serve_transfers(address: str) -> None:
    """The child of :class:`SocketTransfers`: serve requests until the socket is closed."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb", buffering=0) as requests:
        while request := requests.readline():
            size, direction = request.split()
            if direction == b"result":
                connection.sendall(make(int(size)))
            else:
                connection.sendall(len(receive_exactly(connection, int(size))).to_bytes(8, "big"))


def receive_exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = connection.recv_into(rest)
        if not count:
            raise ConnectionResetError("the other process closed the socket")
        rest = rest[count:]
    return data


def check_tasks(values: Sequence[tuple[int, str]], count: int) -> None:
    """Raises ValueError unless every task returned its index, in order, and was a separate Ray task."""
    if [index for index, _ in values] != list(range(count)):
        raise ValueError(f"{count} tasks did not return their indices: got {_short(values)}")
    distinct = len({task_id for _, task_id in values})
    if distinct != count:
        raise ValueError(f"{count} tasks ran as {distinct} Ray tasks")


def check_map(values: Sequence[int], count: int) -> None:
    """Raises ValueError unless x + 1 came back for every x, in order."""
    if list(values) != list(range(1, count + 1)):
        raise ValueError(f"{count} calls of x + 1 returned something else: got {_short(values)}")


def median_ms(call: Callable[[], object], count: int) -> float:
    """Median milliseconds of ``count`` calls, one after the other."""
    figures = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        figures.append((time.perf_counter() - began) * 1000)
    return statistics.median(figures)


def megabytes_per_s(size: int, transfer: Callable[[], int]) -> float:
    """MB per second of a transfer. Raises ValueError unless it returns the size."""
    began = time.perf_counter()
    found = transfer()
    seconds = time.perf_counter() - began
    if found != size:
        raise ValueError(f"{size} bytes arrived as {found}")
    return size / 1e6 / seconds


def answer(workloads: object, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request; an exception becomes an answer as well."""
    numbers = {name: value for name, value in request.items() if name != "do"}
    try:
        return {"value": getattr(workloads, request["do"])(**numbers)}
    except Exception as error:  # noqa: BLE001 - the other side reports it; the next request may succeed
        traceback.print_exc()
        return {"error": "".join(traceback.format_exception_only(error)).strip()}


def main() -> None:
    kind, address = sys.argv[1:]
    if kind == "peer":
        serve_transfers(address)
        return
    answers = _private_stdout()
    with ExitStack() as running:
        if kind == "rmcs_service":
            address = running.enter_context(_service(address))
        if kind == "socket":
            transfers = SocketTransfers(address)
            running.callback(transfers.close)
            workloads: object = transfers
            version = ""
        else:
            api = _connect(kind, address)
            running.callback(api.shutdown)
            workloads, version = Workloads(api), api.__version__
        print(json.dumps({"value": version}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(workloads, json.loads(line))), file=answers, flush=True)


def _connect(kind: str, address: str) -> Any:
    if kind in EMBEDDED:
        ours = importlib.import_module("ray_multicluster_scheduler")
        scheduler = ours.initialize_scheduler_environment(address)
        sends_ahead = scheduler.config.settings.prefetch_ms > 0
        if sends_ahead == (kind == "rmcs_no_prefetch"):
            raise ValueError(f"{kind} {'sends' if sends_ahead else 'does not send'} ahead")
        return ours
    if kind == "rmcs_service":
        os.environ["RMCS_ADDRESS"] = address
        return importlib.import_module("ray_multicluster_scheduler")
    ray = importlib.import_module("ray")
    ray.init(address, log_to_driver=False, logging_level="ERROR")
    return ray


@contextmanager
def _service(config: str) -> Iterator[str]:
    """Start a service with its own process and store; yields its address."""
    with tempfile.TemporaryDirectory(prefix="rmcs-bench-") as folder:
        command = [sys.executable, "-m", "ray_multicluster_scheduler", "up", "--config", config]
        command += ["--port", "0", "--state", folder]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                ready = next((line for line in process.stderr if " is ready" in line), "")
                threading.Thread(target=process.stderr.read, daemon=True).start()
                if not ready:
                    raise RuntimeError("the service did not start")
                os.environ["RMCS_TOKEN_FILE"] = f"{folder}/token"
                yield ready.split()[1]
            finally:
                process.terminate()


def _private_stdout() -> TextIO:
    """A private copy of standard output for answers; other prints go to standard error."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _short(values: Sequence[object]) -> str:
    text = repr(list(values[:5]))
    return text if len(values) <= 5 else f"{text} … ({len(values)})"


if __name__ == "__main__":
    main()
