"""Calls of actors' methods that are not answered: found by their ids, explained, ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.control_plane.runtime.call_item import CallItem
from ray_multicluster_scheduler.control_plane.runtime.call_queue import ANSWERED, call_story
from ray_multicluster_scheduler.control_plane.runtime.explanation_text import Explanation
from ray_multicluster_scheduler.control_plane.runtime.job_status import EXPIRED

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime


def cancel_by_id(runtime: Runtime, call_id: str, *, force: bool) -> None:
    """From any thread. Nothing happens to one that was answered, as all are after the scheduler's end. Raises
    SchedulerError in the child of a fork."""
    runtime.check_process()
    call = runtime.method_calls.find(call_id)
    if call is not None:
        runtime.soon(lambda: runtime.method_calls.cancel(call, force=force))


def explain_by_id(runtime: Runtime, call_id: str) -> dict[str, Any]:
    """The same for the id of a call; of one that was answered only its handle knows more."""
    call = runtime.method_calls.find(call_id)
    if call is not None:
        return explain_call(runtime, call)
    return answered(call_id)


def answered(call_id: str) -> dict[str, Any]:
    return Explanation(id=call_id, kind="call", state=EXPIRED, code=ANSWERED, sentence="it was answered")


def explain_call(runtime: Runtime, call: CallItem) -> dict[str, Any]:
    """From any thread: why a call is where it is, as data."""
    return Explanation(runtime.ask(lambda: story(call)))


def story(call: CallItem) -> dict[str, Any]:
    """The same, on the loop."""
    over = call.outcome
    sentence, before = (over.completion.message, 0) if over is not None else call.actor.why_waiting(call)
    return call_story(call, "SENT" if call.sent_to else "WAITS", sentence, before)
