"""Prepares the arguments of submissions to a service, and defers a submission until its arguments are available.

The service holds the values of items; results of actor calls exist only in the program, and may not have arrived yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
from ray_multicluster_scheduler.app.client_api.remote.submission_sender import PendingSubmission
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.object_argument import ACTOR, RESULT
from ray_multicluster_scheduler.control_plane.runtime.arguments import (
    ArgumentFailure,
    Arguments,
    ArgumentWatch,
    ValueSource,
)
from ray_multicluster_scheduler.control_plane.runtime.item import CallPromise, Item, Outcome
from ray_multicluster_scheduler.control_plane.runtime.outcome import payload_of
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
    from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
    from ray_multicluster_scheduler.app.client_api.remote.remote_runtime import RemoteRuntime


def check_own(arguments: Arguments | None, runtime: RemoteRuntime, what: str) -> None:
    """Raises TaskSubmissionError for handles that belong to another scheduler."""
    if arguments is None:
        return
    handles, actors = cast("tuple[Handle, ...]", arguments.sources), cast("tuple[ActorHandle, ...]", arguments.actors)
    others = [one.id for one in handles if not isinstance(one, ObjectHandle) and one._runtime is not runtime]
    others += [actor._item.id for actor in actors if actor._rmcs_runtime is not runtime]
    if others:
        raise TaskSubmissionError(
            f"{what} was given {others[0]}, which belongs to another scheduler.",
            task_id=what,
            next_step="wait for its result and pass that",
        )


def send_when_ready(runtime: RemoteRuntime, pending: PendingSubmission, arguments: Arguments | None) -> None:
    """Send a submission once the results of the actor calls among its arguments have arrived, and the service has
    accepted the deferred items that it refers to."""
    sources = () if arguments is None else arguments.sources
    actors = () if arguments is None else arguments.actors
    calls = [one for one in sources if isinstance(one._item, CallPromise)]
    item = pending.item

    def send(_: object = None) -> None:
        pending.document["objects"] = [*names_of(sources), *(f"{ACTOR}{actor._item.id}" for actor in actors)]
        pending.blobs.update(bytes_of(sources))
        if not late or runtime.end_deferral(item):
            runtime.send(pending)

    def fail(failure: ArgumentFailure) -> None:
        if runtime.end_deferral(item):
            message = f"{item.task.kind} {item.id} did not run: {failure.sentence}"
            done = Complete(item.id, TaskState.FAILED, 0, None, failure.error, message)
            origin = failure.origin
            outcome = Outcome(done, None if origin is None else origin.result, origin)
            runtime.end_item(item, outcome)

    def on_accepted() -> None:
        """Send, now that the deferred items are accepted; one that ended unsent passes on its error."""
        over = [one for one in sources if isinstance(one._item, Item) and one.done() and one._item in waits]
        ended = tuple(one for one in actors if one._item.outcome is not None and one._item in waits)
        ArgumentWatch(Arguments(b"", sources=(*calls, *over), actors=ended), send, fail).begin()

    every = [*(one._item for one in sources), *(one._item for one in actors)]
    named = [one for one in every if isinstance(one, Item)]
    waits = [one for one in (*named, *runtime.deferred_items(item.task.after)) if runtime.is_deferred(one)]
    late = bool(calls or waits)
    if late:
        runtime.defer(item)
        _call_when_accepted(waits, on_accepted)
    else:
        send()


def _call_when_accepted(items: Sequence[Item], then: Callable[[], object]) -> None:
    """Call ``then`` once all items are accepted by the service or over."""
    if not items:
        then()
        return
    first, others = items[0], items[1:]
    once = threading.Lock()

    def on_transition(item: Item) -> None:
        if item.accepted and once.acquire(blocking=False):
            item.unwatch_transitions(on_transition)
            _call_when_accepted(others, then)

    first.watch_transitions(on_transition)
    on_transition(first)


def names_of(sources: Sequence[ValueSource]) -> list[str]:
    """Return the names of these values at the service. Calls among them have succeeded."""
    return [_value(source)[0] for source in sources]


def bytes_of(sources: Sequence[ValueSource]) -> dict[str, bytes]:
    """Return the values that have to be uploaded, by name."""
    return {name: data for name, data in map(_value, sources) if data is not None}


def _value(source: ValueSource) -> tuple[str, bytes | None]:
    item, outcome = source._item, source._item.outcome
    if isinstance(item, Item):
        return f"{RESULT}{item.id}", None
    assert outcome is not None
    if isinstance(source, ObjectHandle):
        return source._blob(outcome)
    data = payload_of(outcome)  # the result of an actor call exists only here
    return digest_of(data), data
