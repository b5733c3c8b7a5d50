"""Items that were accepted while some of their arguments have no value yet."""

from __future__ import annotations

from collections.abc import Callable

from ray_multicluster_scheduler.app.client_api.arguments.arguments import Arguments
from ray_multicluster_scheduler.common.object_argument import RESULT
from ray_multicluster_scheduler.control_plane.runtime.argument_watch import (
    ArgumentFailure,
    ArgumentWatch,
    Values,
    all_there,
    values_of,
)
from ray_multicluster_scheduler.control_plane.runtime.item import Outcome
from ray_multicluster_scheduler.control_plane.runtime.kept_value import Bring
from ray_multicluster_scheduler.scheduler.lifecycle.events import ArgumentsFailed, ArgumentsReady, Event
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache


class IncompleteItems:
    """Puts the values in the payload cache and tells the brain, on the loop, unless the item is over by then."""

    def __init__(
        self,
        payload_cache: PayloadCache,
        post: Callable[[Event], None],
        soon: Callable[..., None],
        bring: Bring | None = None,
    ) -> None:
        """``bring`` is for values that were left in their clusters, if there can be any."""
        self._payload_cache, self._post, self._soon, self._bring = payload_cache, post, soon, bring
        self._watches: dict[str, ArgumentWatch] = {}
        self._origins: dict[str, Outcome | None] = {}

    def expect(self, task_id: str, arguments: Arguments) -> ArgumentWatch | None:
        """From any thread, for a new item. None: nothing is missing. Else begin the watch once the brain was told."""
        if all_there(arguments):
            self._payload_cache.attach(task_id, values_of(arguments))
            return None
        watch = self._watches[task_id] = ArgumentWatch(
            arguments,
            ready=lambda values: self._soon(self._ready, task_id, values),
            failed=lambda failure: self._soon(self._failed, task_id, failure),
            bring=self._bring,
        )
        return watch

    def bytes_beside(self, task_id: str) -> int:
        """How much travels beside its call and for it alone; what was ``put`` is for many."""
        return sum(len(data) for name, data in self._payload_cache.objects_of(task_id) if name.startswith(RESULT))

    def over(self, task_id: str) -> Outcome | None:
        """On the loop: the item has ended. Returns how an argument of it failed, if that was why."""
        watch = self._watches.pop(task_id, None)
        if watch is not None:
            watch.stop()
        self._payload_cache.detach(task_id)
        return self._origins.pop(task_id, None)

    def _ready(self, task_id: str, values: Values) -> None:
        if self._watches.pop(task_id, None) is not None:
            self._payload_cache.attach(task_id, values.objects)
            self._post(ArgumentsReady(task_id, values.pinned, self.bytes_beside(task_id)))

    def _failed(self, task_id: str, failure: ArgumentFailure) -> None:
        if self._watches.pop(task_id, None) is not None:
            self._origins[task_id] = failure.origin
            self._post(ArgumentsFailed(task_id, failure.sentence, failure.error))
