"""What of a control plane outlives its process, and where it is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ray_multicluster_scheduler.control_plane.runtime.event_publisher import News
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecordStore, NoAgentRecords
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.transition_log import TransitionLog
from ray_multicluster_scheduler.scheduler.scheduler_core.memory_event_log import MemoryEventLog
from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import OutputStore
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache
from ray_multicluster_scheduler.scheduler.scheduler_core.result_collector import ResultCollector

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime


class Keeping(Protocol):
    """Makes the parts of a control plane that keep something; each once."""

    payload_cache: PayloadCache
    output: OutputStore
    memory: AgentRecordStore
    life: int
    """Counts the processes that this control plane has had."""
    lasting: bool
    """Can what is over be read here, by whoever asks?"""

    def blob(self, digest: str) -> bytes | None:
        """A package that a program has given; not on the loop."""

    def log(
        self,
        machine: SchedulerMachine,
        soon: Callable[[Callable[[], object]], object],
        fail: Callable[[BaseException], object],
    ) -> TransitionLog:
        """``soon`` does something on the loop; ``fail`` hears that nothing can be kept any more."""

    def news(self, runtime: Runtime) -> News:
        """On the loop, after :meth:`log`."""

    def collector(
        self, post: Callable[[Event], None], when_durable: Callable[[Callable[[], object]], object]
    ) -> ResultCollector:
        """``when_durable`` does something when all that was posted before was handled, and what came of it is kept."""


class NothingKept:
    """All of it lives and dies with the program."""

    def __init__(self) -> None:
        self.payload_cache, self.output = PayloadCache(), OutputStore()
        self.memory: AgentRecordStore = NoAgentRecords()
        self.life, self.lasting = 1, False

    def blob(self, digest: str) -> bytes | None:
        return None

    def log(
        self,
        machine: SchedulerMachine,
        soon: Callable[[Callable[[], object]], object],
        fail: Callable[[BaseException], object],
    ) -> TransitionLog:
        self._log = MemoryEventLog(machine)
        return self._log

    def news(self, runtime: Runtime) -> News:
        news = News(runtime, self._log, 0, self._log.told_after)
        self._log.listened = lambda: len(news.hub) > 0
        return news

    def collector(
        self, post: Callable[[Event], None], when_durable: Callable[[Callable[[], object]], object]
    ) -> ResultCollector:
        return ResultCollector(post, self.output)
