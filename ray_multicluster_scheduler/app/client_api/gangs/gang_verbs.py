"""The part of a UnifiedScheduler that is about gangs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.actor_verbs import ActorVerbs
from ray_multicluster_scheduler.app.client_api.gangs.actor_gang import handles_of
from ray_multicluster_scheduler.app.client_api.gangs.gang_submission import GangSubmission
from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
from ray_multicluster_scheduler.app.client_api.options import GangOptions
from ray_multicluster_scheduler.common.model.gang_description import Strategy


class GangVerbs(ActorVerbs):
    """Submits gangs. Safe from any thread."""

    def submit_gang(
        self,
        members: Iterable[Any],
        *,
        strategy: Strategy = "PACK",
        tags: Sequence[str] | None = None,
        **options: Unpack[GangOptions],
    ) -> list[Any]:
        """Start all ``members`` together on one cluster, in one placement group, or none of them.

        Of functions it waits for all and returns the list of their values, in the members' order; the first one that
        fails ends the others, and what it raised is raised here. Of classes it waits until all actors are ready and
        returns their handles; the end of one of them is the end of all. Raises SchedulerError.
        """
        made = self.submit_gang_async(members, strategy=strategy, tags=tags, **options)
        if isinstance(made, TaskHandle):
            values: list[Any] = made.result()
            return values
        return [ActorHandle.ready(handle) for handle in made]

    def submit_gang_async(
        self,
        members: Iterable[Any],
        *,
        strategy: Strategy = "PACK",
        tags: Sequence[str] | None = None,
        **options: Unpack[GangOptions],
    ) -> Any:
        """The same without waiting: of functions one handle, whose result is the list; of classes the actors' handles,
        which take calls at once. Raises ConfigurationError, TaskSubmissionError for what is wrong at once."""
        runtime, submission = self._started()
        described = GangSubmission(runtime.settings, runtime.clock, runtime.homes, submission.new_id)
        new = described.describe(members, strategy, tags, options)
        gang = new.task.gang
        item = runtime.submit(new.shelved(runtime.payload_cache), new.arguments)
        if gang is not None and gang.of == "actor":
            return handles_of(item, runtime, [part.methods for part in new.parts])
        handle = TaskHandle(item, runtime)
        runtime.let_catch_up()
        return handle
