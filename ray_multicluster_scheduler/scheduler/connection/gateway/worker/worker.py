"""run_call: runs a task in a worker process: loads function and arguments, captures output and exception.

Submitted to Ray by ``CallRunner``. It always returns an envelope: Ray sees an error only if the process itself died.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial

import ray

from ray_multicluster_scheduler.common.current_item import set_current
from ray_multicluster_scheduler.common.frames import Blob
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
    item, channel = task.item, channel_for(task.agent)
    node_id = this_node()
    try:
        running = channel.begin(
            item.id, item.attempt, node_id, sent_at=task.sent_at, report_now=not task.short, member=item.member
        )
    except NoLease as error:
        return no_lease(node_id, error)
    except TakenBack:
        return pack({"status": "cancelled"})
    try:
        return _run(task, separate, channel, running)
    except KeyboardInterrupt:  # from ray.cancel(), outside of the user's code: without "at" it would not have begun
        set_current(None)
        channel.end(running)
        return pack({"status": "cancelled", "at": running.started_at, "node": node_id})


def _run(task: TaskOrder, separate: Sequence[Blob], channel: WorkerChannel, running: RunningCall) -> Envelope:
    """Run the user's code of a call that has begun."""
    set_current(task.item)
    _capture_output()
    process = os.getpid()
    try:
        head, payload = _call(task, separate)
    except KeyboardInterrupt:  # from ray.cancel()
        head, payload = {"status": "cancelled"}, ()
    finally:
        if os.getpid() != process:
            os._exit(0)  # a child forked by user code has returned here; only its parent may answer
        set_current(None)
        rest = channel.end(running)
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
    function: Blob | None = task.function
    arguments: Blob | None = task.arguments
    if function is None:
        function, *separate = separate
    if arguments is None:
        arguments, *separate = separate
    try:
        load = partial(load_function, task.digest, function)
        target, args, kwargs, _ = load_call(task.homes, arguments, separate, load)
    except Exception as error:  # noqa: BLE001 - unpickling runs arbitrary code; every error is reported
        return not_loadable(error), ()
    began = time.monotonic()
    try:
        value = target(*args, **kwargs)
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        outcome: Outcome = failed("user", error, f"the task called sys.exit({error.code!r})"), ()
        took = time.monotonic() - began
    except BaseException as error:  # noqa: BLE001 - the user's exception is the answer
        outcome = user_error(error)
        took = time.monotonic() - began
    else:
        took = time.monotonic() - began
        outcome = succeeded(value, "task's")
    outcome[0]["took"] = took
    return outcome


def _capture_output() -> None:
    """Send the output of Python code to the channel as well as to the worker's own log.

    The streams are the same for all calls of a process, so that a log handler of one call works in the next.
    """
    global _streams  # noqa: PLW0603 - created once per process, for all calls
    if _streams is None:
        _streams = Tee(sys.stdout, partial(write_output, "stdout")), Tee(sys.stderr, partial(write_output, "stderr"))
    sys.stdout, sys.stderr = _streams
