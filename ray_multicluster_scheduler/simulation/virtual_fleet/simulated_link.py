"""The link to one simulated cluster: latency, lost contact, leases, snapshots and the dashboard, in virtual time.

It turns the state machine's instructions into calls to a `SimulatedClusterRun`, and that cluster's reports into events
for the machine. While contact is lost, both directions are buffered, and every dispatched attempt is answered exactly
once in the end.
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
from ray_multicluster_scheduler.simulation.simulated_fleet import SimulatedCluster
from ray_multicluster_scheduler.simulation.virtual_fleet.simulated_cluster import (
    Attempt,
    Key,
    RunObserver,
    SimulatedClusterRun,
)
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import VirtualClock

PYTHON, RAY = "3.11.9", "2.60.0"
TIMEOUT_S = 5.0
"""Time until a request to a dashboard that cannot be reached fails."""
REDIAL_S = 1.0
"""Pause between two attempts to reconnect."""


class SimulatedLink:
    """The control plane's side of one cluster. ``post`` feeds an event to the machine at a time."""

    def __init__(
        self,
        spec: SimulatedCluster,
        settings: Settings,
        clock: VirtualClock,
        random_stream: Callable[[str], Random],
        post: Callable[[float, Event], None],
        observer: RunObserver,
    ) -> None:
        self.spec, self.name = spec, spec.name
        rng = random_stream(f"crashes of {spec.name}")
        self.cluster = SimulatedClusterRun(spec, clock, rng, self._receive, observer)
        self._settings, self._clock, self._post = settings, clock, post
        self._snapshot_rng = random_stream(f"snapshots of {spec.name}")
        self._latency = spec.latency_s
        self._link: Literal["none", "starting", "up", "silent"] = "none"
        self._unanswered: dict[Key, Attempt] = {}
        """Attempts that were sent over the link and have no final event yet."""
        self._jobs: dict[Key, Attempt] = {}
        self._waiting: list[Attempt] = []
        """Attempts that wait for the link to come up."""
        self._inbox: list[tuple[Event, bool]] = []
        self._outbox: list[tuple[Callable[[Key], object], Key]] = []
        """Events and orders that could not be delivered while contact was lost."""
        self.alive, self._cuts = True, 0
        self.session = 1
        self._restarted = self._lease_expired = False
        self._contact_epoch = 0
        """Changes whenever contact is lost or regained, so that timers of an earlier loss are recognised."""
        self._pushed_version = -1

    @property
    def reachable(self) -> bool:
        return self.alive and not self._cuts

    # ---- orders of the machine

    def dispatch(self, attempt: Attempt) -> None:
        if attempt.is_job:
            self._dispatch_job(attempt)
        elif self._link == "up":
            self._unanswered[attempt.key] = attempt
            self._clock.after(self._latency, self._on_arrival, attempt)
        elif self._link == "silent":
            self._unanswered[attempt.key] = attempt  # sent when contact is regained
        else:
            self._waiting.append(attempt)
            if self._link == "none":
                self._link = "starting"
                self._clock.after(self.spec.agent_start_s, self._on_agent_started)

    def start(self, key: Key) -> None:
        self._send_order(self.cluster.start, key)

    def recall(self, key: Key) -> None:
        if not self._cancel_waiting(key):
            self._send_order(self.cluster.recall, key)

    def cancel(self, key: Key) -> None:
        attempt = self._unanswered.get(key) or self._jobs.get(key)
        if attempt is not None:
            attempt.cancel_requested = True
        if not self._cancel_waiting(key):
            self._send_order(self.cluster.cancel, key)

    def refresh(self) -> None:
        """Answer with exactly one SnapshotTaken or SnapshotFailed."""
        if not self.reachable:
            self._fail_snapshot("CLUSTER_UNREACHABLE", TIMEOUT_S if self.alive else 2 * self._latency)
        elif self._loses_snapshot():
            self._fail_snapshot("TIMEOUT", TIMEOUT_S)
        else:
            self._clock.after(self._latency, self._answer_refresh)

    def check_dashboard(self) -> None:
        sentence = None if self.reachable else f"{self.name} does not answer"
        wait = 2 * self._latency if self.reachable else TIMEOUT_S
        self._post(self._clock.now + wait, DashboardChecked(self.name, sentence))

    def push_changes(self) -> None:
        """Push a snapshot over the link if the cluster changed since the last one."""
        version = self.cluster.allocation.version
        if self._link == "up" and self.reachable and version != self._pushed_version:
            if not self._loses_snapshot():
                self._push_snapshot()
            self._pushed_version = version

    # ---- faults

    def cut(self) -> None:
        """The cluster becomes unreachable; it keeps running."""
        self._cuts += 1
        self._lose_contact()

    def end_cut(self) -> None:
        self._cuts -= 1
        self._clock.after(REDIAL_S, self._regain_contact)

    def kill(self) -> None:
        """The whole cluster dies with everything that runs there."""
        if self.alive:
            self.alive = False
            self.cluster.end_all("died", jobs=True)
            self.cluster.remove_nodes()
            self._inbox.clear()
            self._lose_contact()

    def restart(self) -> None:
        """A dead cluster comes back as a new Ray session."""
        if not self.alive:
            self.alive, self._restarted = True, True
            self.session += 1
            self.cluster.restore_nodes()
            self._clock.after(REDIAL_S, self._regain_contact)

    def _lose_contact(self) -> None:
        if self._link == "up":
            self._link = "silent"
            self._contact_epoch += 1
            settings, now = self._settings, self._clock.now
            self._clock.at(now + 3 * settings.heartbeat_s, self._report_link_down, self._contact_epoch)
            self._clock.at(now + settings.lease_s, self._expire_lease, self._contact_epoch)
            self._clock.at(now + settings.lost_after_s, self._declare_lost, self._contact_epoch)

    def _regain_contact(self, _: object) -> None:
        if not self.reachable:
            return
        restarted, self._restarted = self._restarted, False
        if restarted:
            self._fail_jobs()
        if self._link == "silent":
            if restarted or self._lease_expired:
                self._close(f"the agent in {self.name} has ended", restarted=restarted)
            else:
                self._reconnect()
        self._deliver_buffered()

    def _reconnect(self) -> None:
        self._contact_epoch += 1
        self.link_up()
        for attempt in list(self._unanswered.values()):
            if attempt.key not in self.cluster.attempts and not attempt.ended:  # it was sent while contact was lost
                if attempt.cancel_requested:
                    self._receive(AttemptFinished(*attempt.key, "cancelled"), False)
                else:
                    self._on_arrival(attempt)

    def _deliver_buffered(self) -> None:
        outbox, self._outbox = self._outbox, []
        for order, key in outbox:
            order(key)
        inbox, self._inbox = self._inbox, []
        for event, job in inbox:
            self._receive(event, job)

    def _report_link_down(self, epoch: int) -> None:
        if epoch == self._contact_epoch and self._link == "silent":
            self._post(self._clock.now, LinkDown(self.name, f"no message from {self.name}"))

    def _expire_lease(self, epoch: int) -> None:
        """The cluster ends on its own clock what runs under the lease, and cannot report it."""
        if epoch == self._contact_epoch and self._link == "silent":
            self._lease_expired = True
            self.cluster.end_all("lease", jobs=False)
            self._inbox = [(event, job) for event, job in self._inbox if job]

    def _declare_lost(self, epoch: int) -> None:
        if epoch == self._contact_epoch and self._link == "silent":
            self._close(f"no message from {self.name} for lost_after_s", restarted=False)

    def _close(self, sentence: str, *, restarted: bool) -> None:
        """Close the link for good: no attempt runs behind it any more, so every unanswered one is answered."""
        self._link, self._lease_expired = "none", False
        self._contact_epoch += 1
        code = "CLUSTER_RESTARTED" if restarted else "CLUSTER_LOST"
        for key, attempt in list(self._unanswered.items()):
            attempt.ended = True
            if attempt.cancel_requested:
                self._post(self._clock.now, AttemptFinished(*key, "cancelled", code=code))
            else:
                self._fail_attempt(key, code, sentence)
        self._unanswered.clear()
        self._outbox = [(order, key) for order, key in self._outbox if key in self._jobs]
        self._post(self._clock.now, LinkClosed(self.name, sentence))

    def _fail_jobs(self) -> None:
        """The restarted cluster answers, and no longer knows the jobs of the session before."""
        for key in list(self._jobs):
            self._fail_attempt(key, "CLUSTER_RESTARTED", f"{self.name} was restarted and no longer knows the job")
        self._jobs.clear()

    def _fail_attempt(self, key: Key, code: str, sentence: str) -> None:
        failed = AttemptFinished(*key, "failed", FailureClass.CLUSTER, "ClusterLostError", code, sentence)
        self._post(self._clock.now, failed)

    # ---- the link

    def link_up(self) -> None:
        """Report the link as up, and push a snapshot."""
        self._link = "up"
        self._post(self._clock.now, LinkUp(self.name, PYTHON, RAY, self._session()))
        self._push_snapshot()

    def _on_agent_started(self, _: object) -> None:
        waiting, self._waiting = self._waiting, []
        if self.reachable:
            self.link_up()
            for attempt in waiting:
                self.dispatch(attempt)
            return
        self._link = "none"
        sentence = f"no agent could be started in {self.name}: it does not answer"
        self._post(self._clock.now, LinkFailed(self.name, "LINK_FAILED", sentence))
        for attempt in waiting:
            self._refuse(attempt, "LINK_FAILED", sentence)

    def _on_arrival(self, attempt: Attempt) -> None:
        key = attempt.key
        if not self.reachable or key not in self._unanswered or key in self.cluster.attempts:
            return  # lost on its way (it is sent again or answered later), already answered, or already there
        self._receive(DispatchAccepted(*attempt.key), False)
        self.cluster.accept(attempt)

    def _receive(self, event: Event, job: bool) -> None:
        """Pass an event of the cluster on after the latency; events of jobs are seen at the next poll."""
        if not self.reachable or (not job and self._link != "up"):
            self._inbox.append((event, job))
            return
        if type(event) is AttemptFinished:
            (self._jobs if job else self._unanswered).pop((event.task_id, event.attempt), None)
        poll = self.spec.job_poll_s if job else 0.0
        now = self._clock.now
        seen_at = math.ceil(round(now / poll, 6)) * poll if poll else now
        self._post(max(seen_at, now) + self._latency, event)

    def _send_order(self, order: Callable[[Key], object], key: Key) -> None:
        """Call a method of the cluster after the latency; buffer it while contact is lost."""
        if self.reachable and (self._link == "up" or key in self._jobs):
            self._clock.after(self._latency, order, key)
        elif key in self._unanswered or key in self._jobs:
            self._outbox.append((order, key))

    def _cancel_waiting(self, key: Key) -> bool:
        """Cancel an attempt that still waits for the link; False if it does not."""
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
            self._clock.after(self._latency, self.cluster.accept, attempt)
        else:
            self._refuse(attempt, "CLUSTER_UNREACHABLE", f"{self.name} does not answer", TIMEOUT_S)

    def _refuse(self, attempt: Attempt, code: str, sentence: str, wait: float = 0.0) -> None:
        refused = DispatchRefused(*attempt.key, FailureClass.CLUSTER, code, sentence)
        self._post(self._clock.now + wait, refused)

    # ---- snapshots

    def _session(self) -> str:
        return f"{self.name}-session-{self.session}"

    def _loses_snapshot(self) -> bool:
        return self.spec.snapshot_loss > 0 and self._snapshot_rng.random() < self.spec.snapshot_loss

    def _push_snapshot(self) -> None:
        self._pushed_version = self.cluster.allocation.version
        self._send_snapshot("agent")

    def _answer_refresh(self, _: object) -> None:
        if self.reachable:
            self._send_snapshot("agent" if self._link == "up" else "http")
        else:
            self._fail_snapshot("CLUSTER_UNREACHABLE", 0.0)

    def _fail_snapshot(self, code: str, wait: float) -> None:
        sentence = f"{self.name} did not answer in time" if code == "TIMEOUT" else f"{self.name} does not answer"
        self._post(self._clock.now + wait, SnapshotFailed(self.name, code, sentence))

    def _send_snapshot(self, source: SnapshotSource) -> None:
        """It shows the present, arrives later, and carries the time of its arrival, as with a real cluster."""
        arrives_at = self._clock.now + self._latency + self.spec.snapshot_delay_s
        snapshot = ResourceSnapshot(
            self.name,
            arrives_at,
            self.cluster.allocation.snapshot(),
            source,
            self._session(),
            RAY,
            PYTHON if source == "agent" else None,
        )
        self._post(arrives_at, SnapshotTaken(snapshot))
