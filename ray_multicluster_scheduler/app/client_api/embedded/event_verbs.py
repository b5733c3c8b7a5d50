"""The part of a UnifiedScheduler that tells what happens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from ray_multicluster_scheduler.app.client_api.embedded.submission import Submission
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.runtime.event_iterator import EventCallback, EventIterator, EventListener
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event_filter import EventFilter

Words = str | Iterable[str] | None


class EventVerbs(ABC):
    """Safe from any thread."""

    def events(
        self,
        *,
        types: Words = None,
        id: Words = None,  # noqa: A002 - the name of the field
        owner: Words = None,
        cluster: Words = None,
        state: Words = None,
        kind: Words = None,
        since: int | None = None,
    ) -> EventIterator:
        """What happens from now on, as it happens: iterate with `for` or `async for`. All that is given has to be met,
        each with any of its words; ``types`` are transition, decision, cluster, action (these four if nothing is said)
        and telemetry. With ``since``, the number of an event, what came after that one is told first, so far as it is
        known.

        Raises ConfigurationError for what cannot be chosen.
        """
        said = {"types": types, "id": id, "owner": owner, "cluster": cluster, "state": state, "kind": kind}
        if since is not None and (isinstance(since, bool) or not isinstance(since, int) or since < 0):
            raise ConfigurationError(f"since is {since!r}.", next_step="give the number of an event")
        return self._started()[0].events(EventFilter.of(said), since)

    def on_event(self, hear: EventCallback, *, since: int | None = None, **wanted: Words) -> EventListener:
        """Call it, or await what it returns, with each event that is wanted (see :meth:`events`), until the scheduler
        ends or ``close()`` of what is returned. If it raises, that is logged, and it is not called any more."""
        if not callable(hear):
            raise ConfigurationError(f"{hear!r} cannot be called.", next_step="give a function")
        return EventListener(self.events(since=since, **wanted), hear)

    @abstractmethod
    def _started(self) -> tuple[ControlPlane, Submission]: ...
