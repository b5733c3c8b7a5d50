"""What runs around a user's function, in the worker process.

It reports who, where and when, keeps the function by its digest, catches what the function prints and
raises, and always answers with an envelope: Ray sees an error only when the process itself died.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from ray_multicluster_scheduler.common.current_item import set_current
from ray_multicluster_scheduler.scheduler.connection.gateway.channel import (
    NoLease,
    Running,
    WorkerChannel,
    channel_for,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.envelope import pack
from ray_multicluster_scheduler.scheduler.connection.gateway.user_code import (
    Outcome,
    Tee,
    failed,
    load_arguments,
    load_function,
    not_loadable,
    succeeded,
    user_error,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.work_order import WorkOrder

_node_id = ""


def run_call(order: bytes, function: bytes, arguments: bytes, *objects: bytes) -> bytes:
    """One attempt of one task. Returns an envelope, whatever happens to the user's code."""
    told = WorkOrder.unpacked(order)
    item, channel = told.item, channel_for(told.line)
    node_id = this_node()
    try:
        running = channel.begin(item.id, item.attempt, node_id)
    except NoLease as error:
        return no_lease(node_id, error)
    set_current(item)
    head: dict[str, Any] = {"at": running.started_at, "node": running.node_id}
    payload = b""
    try:
        with _captured(channel, running):
            outcome, payload = _call(told, function, arguments, objects)
        head |= outcome
    except KeyboardInterrupt:
        # This is how ray.cancel() arrives.
        head |= {"status": "cancelled"}
    finally:
        set_current(None)
        rest = channel.end(running)
    if rest:
        head["parts"] = rest
    if running.chunks:
        head["chunks"] = running.chunks
    if running.dropped:
        head["dropped"] = running.dropped
    return pack(head, payload)


def this_node() -> str:
    """The id of the node that this process runs on."""
    global _node_id  # noqa: PLW0603 - asked once per process: a worker never moves
    if not _node_id:
        _node_id = ray.get_runtime_context().get_node_id()
    return _node_id


def no_lease(node_id: str, error: NoLease) -> bytes:
    """The answer to what was not begun because nobody vouched for it."""
    return pack({**failed("crash", error, f"node {node_id}: {error}"), "code": "AGENT_UNREACHABLE"})


def _call(told: WorkOrder, function: bytes, arguments: bytes, objects: tuple[bytes, ...]) -> Outcome:
    try:
        target = load_function(told.digest, function)
        args, kwargs = load_arguments(told.homes, arguments, objects)
    except Exception as error:  # noqa: BLE001 - unpickling runs arbitrary code; all of it is reported
        return not_loadable(error), b""
    began = time.monotonic()
    try:
        value = target(*args, **kwargs)
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        outcome: Outcome = failed("user", error, f"the task called sys.exit({error.code!r})"), b""
    except BaseException as error:  # noqa: BLE001 - the user's exception is the answer
        outcome = user_error(error)
    else:
        took = time.monotonic() - began
        outcome = succeeded(value, "task's")
        outcome[0]["took"] = took
        return outcome
    outcome[0]["took"] = time.monotonic() - began
    return outcome


@contextmanager
def _captured(channel: WorkerChannel, running: Running) -> Iterator[None]:
    """Send what Python code prints to the channel as well as to the worker's own log."""
    before = sys.stdout, sys.stderr
    sys.stdout = Tee(before[0], lambda text: channel.write(running, "stdout", text))
    sys.stderr = Tee(before[1], lambda text: channel.write(running, "stderr", text))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
