"""run_call and run_stream: run a task, or a generator, in a worker process: load function and arguments, capture output
and exception.

Submitted to Ray by ``CallRunner``. They always return envelopes: Ray sees an error only if the process itself died.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any

import ray

from ray_multicluster_scheduler.common.current_item import set_current
from ray_multicluster_scheduler.common.frames import Blob
from ray_multicluster_scheduler.common.several_returns import iterated
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import (
    NoLease,
    RunningCall,
    TakenBack,
    WorkerChannel,
    channel_for,
    write_output,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import (
    Envelope,
    TaskOrder,
    pack,
    pack_success,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.user_code import (
    Outcome,
    Tee,
    failed,
    load_call,
    load_function,
    not_loadable,
    succeeded,
    user_error,
)

_node_id = ""
_streams: tuple[Tee, Tee] | None = None


def run_call(order: bytes, *separate: Blob) -> Envelope:
    """Run one attempt of a task. Always returns an envelope."""
    task = TaskOrder.unpacked(order)
    channel = channel_for(task.agent)
    running = _begin(task, channel, report_now=not task.short)
    if not isinstance(running, RunningCall):
        return running
    try:
        return _run(task, separate, channel, running)
    except KeyboardInterrupt:  # from ray.cancel(), outside of the user's code: without "at" it would not have begun
        set_current(None)
        return _envelope(running, {"status": "cancelled"}, (), channel.end(running))


def _run(task: TaskOrder, separate: Sequence[Blob], channel: WorkerChannel, running: RunningCall) -> Envelope:
    """Run the user's code of a call that has begun."""
    _prepare(task)
    process = os.getpid()
    try:
        head, payload = _call(task, separate)
    except KeyboardInterrupt:  # from ray.cancel()
        head, payload = {"status": "cancelled"}, ()
    finally:
        rest = _end(channel, running, process)
    return _envelope(running, head, payload, rest)


def run_stream(order: bytes, *separate: Blob) -> Iterator[Envelope]:
    """Run one attempt of a task that is a generator: an envelope for each value, with its index as ``yields``, and
    then that of the task."""
    task = TaskOrder.unpacked(order)
    channel = channel_for(task.agent)
    running = _begin(task, channel, report_now=True)
    if not isinstance(running, RunningCall):
        yield running
        return
    process = os.getpid()
    try:
        _prepare(task)
        head, payload = yield from _stream(task, separate)
        while not running.reported:  # its values are requested only once it is known to run
            time.sleep(_REPORT_PAUSE_S)
    except KeyboardInterrupt:  # from ray.cancel()
        head, payload = {"status": "cancelled"}, ()
    finally:
        rest = _end(channel, running, process)
    yield _envelope(running, head, payload, rest)


def _begin(task: TaskOrder, channel: WorkerChannel, *, report_now: bool) -> RunningCall | Envelope:
    """Start the call, or return the envelope of one that was not started."""
    item, node_id = task.item, this_node()
    try:
        running = channel.begin(
            item.id, item.attempt, node_id, sent_at=task.sent_at, report_now=report_now, member=item.member
        )
    except NoLease as error:
        return no_lease(node_id, error)
    except TakenBack:
        return pack({"status": "cancelled"})
    return running


def _prepare(task: TaskOrder) -> None:
    set_current(task.item)
    _capture_output()


def _end(channel: WorkerChannel, running: RunningCall, process: int) -> list[tuple[str, str]]:
    """End the call that ``process`` began; returns the output that was not sent yet."""
    if os.getpid() != process:
        os._exit(0)  # a child forked by user code has returned here; only its parent may answer
    set_current(None)
    return channel.end(running)


def _envelope(
    running: RunningCall, head: dict[str, Any], payload: Sequence[Blob], rest: list[tuple[str, str]]
) -> Envelope:
    if head["status"] == "succeeded" and not (rest or running.chunks or running.dropped):
        return pack_success(running.started_at, head["took"], running.node_id, payload)
    head["at"], head["node"] = running.started_at, running.node_id
    if rest:
        head["parts"] = rest
    if running.chunks:
        head["chunks"] = running.chunks
    if running.dropped:
        head["dropped"] = running.dropped
    return pack(head, payload)


def this_node() -> str:
    """The id of the node that this process runs on."""
    global _node_id  # noqa: PLW0603 - read once per process: a worker never moves
    if not _node_id:
        _node_id = ray.get_runtime_context().get_node_id()
    return _node_id


def kill_worker(pid: int) -> None:
    """On the node of a worker: kill its process. Another that has its number by now is of another session."""
    if os.getsid(pid) == os.getsid(0):
        os.kill(pid, signal.SIGKILL)


def no_lease(node_id: str, error: NoLease) -> Envelope:
    """The envelope of a call that was not started without a lease."""
    return pack({**failed("crash", error, f"node {node_id}: {error}"), "code": "AGENT_UNREACHABLE"})


def _call(task: TaskOrder, separate: Sequence[Blob]) -> Outcome:
    try:
        target, args, kwargs = _load(task, separate)
    except Exception as error:  # noqa: BLE001 - unpickling runs arbitrary code; every error is reported
        return not_loadable(error), ()
    began = time.monotonic()
    value, failure = attempted("task", target, *args, **kwargs)
    took = time.monotonic() - began
    outcome = succeeded(value, "task's") if failure is None else failure
    outcome[0]["took"] = took
    return outcome


def _stream(task: TaskOrder, separate: Sequence[Blob]) -> Generator[Envelope, None, Outcome]:
    """Yield an envelope for each value; returns the outcome of the task."""
    try:
        target, args, kwargs = _load(task, separate)
    except Exception as error:  # noqa: BLE001 - unpickling runs arbitrary code; every error is reported
        return not_loadable(error), ()
    began = time.monotonic()
    values, failure = attempted("task", target, *args, **kwargs)
    if failure is None:
        values, failure = attempted("task", iterated, values, task_name(target))
    index = 0
    while failure is None:
        value, failure = attempted("task", next, values, _END)
        if value is _END:
            failure = succeeded(index, "task's")  # the number of values, by which the reader notices a lost one
        elif failure is None:
            envelope, failure = yielded(value, index, "task's")
            if envelope is not None:
                yield envelope
            index += 1
    failure[0]["took"] = time.monotonic() - began
    return failure


_END = object()
_REPORT_PAUSE_S = 0.01


def attempted(of: str, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any, Outcome | None]:
    """Run user code ``of`` a task: its value, or the outcome of a failure. Raises KeyboardInterrupt."""
    try:
        return work(*args, **kwargs), None
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        return None, (failed("user", error, f"the {of} called sys.exit({error.code!r})"), ())
    except BaseException as error:  # noqa: BLE001 - the user's exception is the answer
        return None, user_error(error)


def yielded(value: Any, index: int, of: str) -> tuple[Envelope | None, Outcome | None]:
    """The envelope of a value that a generator yielded, or the outcome of a task whose value cannot be sent."""
    head, payload = succeeded(value, of)
    if head["status"] != "succeeded":
        return None, (head, payload)
    return pack({**head, "yields": index}, payload), None


def task_name(function: Any) -> str:
    """The name of a user's function, for messages."""
    return str(getattr(function, "__qualname__", None) or repr(function))


def _load(task: TaskOrder, separate: Sequence[Blob]) -> tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]:
    """The function and its arguments. Raises any exception of unpickling."""
    function: Blob | None = task.function
    arguments: Blob | None = task.arguments
    if function is None:
        function, *separate = separate
    if arguments is None:
        arguments, *separate = separate
    load = partial(load_function, task.digest, function)
    target, args, kwargs, _ = load_call(task.homes, arguments, separate, load)
    return target, args, kwargs


def _capture_output() -> None:
    """Send the output of Python code to the channel as well as to the worker's own log.

    The streams are the same for all calls of a process, so that a log handler of one call works in the next.
    """
    global _streams  # noqa: PLW0603 - created once per process, for all calls
    if _streams is None:
        _streams = Tee(sys.stdout, partial(write_output, "stdout")), Tee(sys.stderr, partial(write_output, "stderr"))
    sys.stdout, sys.stderr = _streams
