"""NearSide: our hands towards one simulated cluster. The link, the dashboard, and what is known through them.

It answers as the real hands do: every accepted attempt exactly once, every question exactly once. What a cluster says
while nobody can hear it is told when the link is there again, unless the lease was over by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Literal

from ray_multicluster_scheduler.common.model import FailureClass, ResourceSnapshot
from ray_multicluster_scheduler.common.model.snapshot import SnapshotSource
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    AttemptFinished,
    DashboardChecked,
    DispatchAccepted,
    DispatchRefused,
    Event,
    LinkClosed,
    LinkDown,
    LinkFailed,
    LinkUp,
    SnapshotFailed,
    SnapshotTaken,
)
from ray_multicluster_scheduler.simulation.model import SimulatedCluster
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_cluster import Attempt, FarSide, Watcher
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import Clockwork

PYTHON, RAY = "3.11.9", "2.60.0"
TIMEOUT_S = 5.0
"""How long a dashboard that cannot be reached is waited for."""
REDIAL_S = 1.0
"""How long an agent, or whoever asks for it, pauses between two tries."""

Key = tuple[str, int]


class NearSide:
    """``post`` feeds an event to the machine at a time."""

    def __init__(
        self,
        spec: SimulatedCluster,
        settings: Settings,
        clock: Clockwork,
        chance: Callable[[str], Random],
        post: Callable[[float, Event], None],
        watcher: Watcher,
    ) -> None:
        self.spec, self.name = spec, spec.name
        self.far = FarSide(spec, clock, chance(f"crashes of {spec.name}"), self._hear, watcher)
        self._settings, self._clock, self._post = settings, clock, post
        self._loss = chance(f"snapshots of {spec.name}")
        self._latency = spec.latency_s
        self._link: Literal["none", "starting", "up", "silent"] = "none"
        self._owed: dict[Key, Attempt] = {}
        """Attempts that were sent over the link and not answered."""
        self._jobs: dict[Key, Attempt] = {}
        self._waiting: list[Attempt] = []
        """For the link."""
        self._unheard: list[tuple[Event, bool]] = []
        self._unsaid: list[tuple[Callable[[Key], object], Key]] = []
        self.alive, self._cuts = True, 0
        self.session = 1
        self._restarted = self._lease_ended = False
        self._silence = 0
        """Counts the times that contact was lost, so that what belongs to an older one is known."""
        self._told_changes = -1

    @property
    def reachable(self) -> bool:
        return self.alive and not self._cuts

    # ---- what the machine asks for

    def introduce(self) -> None:
        """The link is up when the run begins."""
        self._link = "up"
        self._post(self._clock.now, LinkUp(self.name, PYTHON, RAY, self._session()))
        self._push_snapshot()

    def dispatch(self, attempt: Attempt) -> None:
        if attempt.work.task.kind == "job":
            self._dispatch_job(attempt)
        elif self._link == "up":
            self._owed[attempt.key] = attempt
            self._clock.after(self._latency, self._arrives, attempt)
        elif self._link == "silent":
            self._owed[attempt.key] = attempt  # sent when the link is there again
        else:
            self._waiting.append(attempt)
            if self._link == "none":
                self._link = "starting"
                self._clock.after(self.spec.agent_start_s, self._link_made)

    def start(self, key: Key) -> None:
        self._say(self.far.start, key)

    def recall(self, key: Key) -> None:
        if not self._never_left(key):
            self._say(self.far.take_back, key)

    def cancel(self, key: Key) -> None:
        attempt = self._owed.get(key) or self._jobs.get(key)
        if attempt is not None:
            attempt.asked_to_end = True
        if not self._never_left(key):
            self._say(self.far.cancel, key)

    def refresh(self) -> None:
        """Answer exactly once."""
        if not self.reachable:
            wait = TIMEOUT_S if self.alive else 2 * self._latency
            failed = SnapshotFailed(self.name, "CLUSTER_UNREACHABLE", f"{self.name} does not answer")
            self._post(self._clock.now + wait, failed)
        elif self._is_lost():
            failed = SnapshotFailed(self.name, "TIMEOUT", f"{self.name} did not answer in time")
            self._post(self._clock.now + TIMEOUT_S, failed)
        else:
            self._clock.after(self._latency, self._answer)

    def check_dashboard(self) -> None:
        sentence = None if self.reachable else f"{self.name} does not answer"
        wait = 2 * self._latency if self.reachable else TIMEOUT_S
        self._post(self._clock.now + wait, DashboardChecked(self.name, sentence))

    def look(self) -> None:
        """Over the link, tell what has changed since it was told last."""
        changes = self.far.room.changes
        if self._link == "up" and self.reachable and changes != self._told_changes:
            if not self._is_lost():
                self._push_snapshot()
            self._told_changes = changes

    # ---- what happens to the cluster

    def cut(self) -> None:
        """Nobody reaches it from now on."""
        self._cuts += 1
        self._falls_silent()

    def die(self) -> None:
        """All of it, with what runs there."""
        if self.alive:
            self.alive = False
            self.far.end_all("died", jobs=True)
            self.far.lose_nodes()
            self._unheard.clear()
            self._falls_silent()

    def mend(self) -> None:
        """The end of a cut."""
        self._cuts -= 1
        self._clock.after(REDIAL_S, self._back)

    def rise(self) -> None:
        """It is there again, as another session that knows of nothing."""
        if not self.alive:
            self.alive, self._restarted = True, True
            self.session += 1
            self.far.get_nodes()
            self._clock.after(REDIAL_S, self._back)

    def _falls_silent(self) -> None:
        if self._link == "up":
            self._link = "silent"
            self._silence += 1
            settings, now = self._settings, self._clock.now
            self._clock.at(now + 3 * settings.heartbeat_s, self._suspect, self._silence)
            self._clock.at(now + settings.lease_s, self._lease_over, self._silence)
            self._clock.at(now + settings.lost_after_s, self._give_up, self._silence)

    def _back(self, _: object) -> None:
        if not self.reachable:
            return
        restarted, self._restarted = self._restarted, False
        if restarted:
            self._forget_jobs()
        if self._link == "silent":
            if restarted or self._lease_ended:
                self._close(f"the agent in {self.name} has ended", restarted=restarted)
            else:
                self._reconnect()
        self._flush()

    def _reconnect(self) -> None:
        self._link = "up"
        self._silence += 1
        self._post(self._clock.now, LinkUp(self.name, PYTHON, RAY, self._session()))
        self._push_snapshot()
        for attempt in list(self._owed.values()):
            if attempt.key not in self.far.has and not attempt.over:  # it was sent into the silence
                if attempt.asked_to_end:
                    self._hear(AttemptFinished(*attempt.key, "cancelled"), False)
                else:
                    self._arrives(attempt)

    def _flush(self) -> None:
        unsaid, self._unsaid = self._unsaid, []
        for say, key in unsaid:
            say(key)
        unheard, self._unheard = self._unheard, []
        for event, job in unheard:
            self._hear(event, job)

    def _suspect(self, silence: int) -> None:
        if silence == self._silence and self._link == "silent":
            self._post(self._clock.now, LinkDown(self.name, f"nothing was heard from {self.name}"))

    def _lease_over(self, silence: int) -> None:
        """Over there, what runs under the lease ends itself; nobody will tell of it."""
        if silence == self._silence and self._link == "silent":
            self._lease_ended = True
            self.far.end_all("lease", jobs=False)
            self._unheard = [(event, job) for event, job in self._unheard if job]

    def _give_up(self, silence: int) -> None:
        if silence == self._silence and self._link == "silent":
            self._close(f"nothing was heard from {self.name} for lost_after_s", restarted=False)

    def _close(self, sentence: str, *, restarted: bool) -> None:
        """Nothing runs behind the link any more: all that is owed is answered."""
        self._link, self._lease_ended = "none", False
        self._silence += 1
        now, code = self._clock.now, "CLUSTER_RESTARTED" if restarted else "CLUSTER_LOST"
        for key, attempt in list(self._owed.items()):
            answer = (
                AttemptFinished(*key, "cancelled", code=code)
                if attempt.asked_to_end
                else AttemptFinished(*key, "failed", FailureClass.CLUSTER, "ClusterLostError", code, sentence)
            )
            attempt.over = True
            self._post(now, answer)
        self._owed.clear()
        self._unsaid = [(say, key) for say, key in self._unsaid if key in self._jobs]
        self._post(now, LinkClosed(self.name, sentence))

    def _forget_jobs(self) -> None:
        """The cluster answers, and knows nothing of them."""
        sentence = f"{self.name} answers, but knows nothing of the job any more: it was restarted"
        for key in list(self._jobs):
            self._post(
                self._clock.now,
                AttemptFinished(
                    *key, "failed", FailureClass.CLUSTER, "ClusterLostError", "CLUSTER_RESTARTED", sentence
                ),
            )
        self._jobs.clear()

    # ---- the link

    def _link_made(self, _: object) -> None:
        waiting, self._waiting = self._waiting, []
        if not self.reachable:
            self._link = "none"
            sentence = f"no agent could be started in {self.name}: it does not answer"
            self._post(self._clock.now, LinkFailed(self.name, "LINK_FAILED", sentence))
            for attempt in waiting:
                self._refuse(attempt, "LINK_FAILED", sentence)
            return
        self._link = "up"
        self._post(self._clock.now, LinkUp(self.name, PYTHON, RAY, self._session()))
        self._push_snapshot()
        for attempt in waiting:
            self.dispatch(attempt)

    def _arrives(self, attempt: Attempt) -> None:
        key = attempt.key
        if not self.reachable or key not in self._owed or key in self.far.has:
            return  # lost on its way, and sent again or answered later; or answered, or there already
        self._hear(DispatchAccepted(*attempt.key), False)
        self.far.take(attempt)

    def _hear(self, event: Event, job: bool) -> None:
        """What the cluster says; that of jobs is seen by asking."""
        if not self.reachable or (not job and self._link != "up"):
            self._unheard.append((event, job))
            return
        if type(event) is AttemptFinished:
            (self._jobs if job else self._owed).pop((event.task_id, event.attempt), None)
        poll = self.spec.job_poll_s if job else 0.0
        now = self._clock.now
        seen_at = math.ceil(round(now / poll, 6)) * poll if poll else now
        self._post(max(seen_at, now) + self._latency, event)

    def _say(self, deed: Callable[[Key], object], key: Key) -> None:
        """Tell the cluster something; while it cannot be reached, keep it."""
        if self.reachable and (self._link == "up" or key in self._jobs):
            self._clock.after(self._latency, deed, key)
        elif key in self._owed or key in self._jobs:
            self._unsaid.append((deed, key))

    def _never_left(self, key: Key) -> bool:
        """One that still waits for its link is over at once."""
        at = next((at for at, attempt in enumerate(self._waiting) if attempt.key == key), None)
        if at is None:
            return False
        del self._waiting[at]
        self._post(self._clock.now, AttemptFinished(*key, "cancelled"))
        return True

    def _dispatch_job(self, attempt: Attempt) -> None:
        if self.reachable:
            self._jobs[attempt.key] = attempt
            self._post(self._clock.now + 2 * self._latency, DispatchAccepted(*attempt.key))
            self._clock.after(self._latency, self.far.take, attempt)
        else:
            self._refuse(attempt, "CLUSTER_UNREACHABLE", f"{self.name} does not answer", TIMEOUT_S)

    def _refuse(self, attempt: Attempt, code: str, sentence: str, wait: float = 0.0) -> None:
        refused = DispatchRefused(*attempt.key, FailureClass.CLUSTER, code, sentence)
        self._post(self._clock.now + wait, refused)

    # ---- snapshots

    def _session(self) -> str:
        return f"{self.name}-session-{self.session}"

    def _is_lost(self) -> bool:
        return self.spec.snapshot_loss > 0 and self._loss.random() < self.spec.snapshot_loss

    def _push_snapshot(self) -> None:
        self._told_changes = self.far.room.changes
        self._shoot("agent")

    def _answer(self, _: object) -> None:
        if self.reachable:
            self._shoot("agent" if self._link == "up" else "http")
        else:
            self._post(
                self._clock.now, SnapshotFailed(self.name, "CLUSTER_UNREACHABLE", f"{self.name} does not answer")
            )

    def _shoot(self, source: SnapshotSource) -> None:
        """It shows what is now, comes later, and is dated by its coming, as with the real hands."""
        comes_at = self._clock.now + self._latency + self.spec.snapshot_delay_s
        shown = ResourceSnapshot(
            self.name,
            comes_at,
            self.far.room.seen(),
            source,
            self._session(),
            RAY,
            PYTHON if source == "agent" else None,
        )
        self._post(comes_at, SnapshotTaken(shown))
