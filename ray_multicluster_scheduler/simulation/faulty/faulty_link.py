"""The link to one cluster of a faulty run: calls, reports, heartbeats, the lease, the dashboard, and their faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.lifecycle import codes, events
from ray_multicluster_scheduler.simulation.faulty.faulty_cluster import Attempt, FaultyCluster

if TYPE_CHECKING:
    from ray_multicluster_scheduler.simulation.faulty.faulty_executor import FaultyExecutor

_MAY_BE_LOST = events.DispatchAccepted | events.Started | events.PlaceMoved
LEASE_MARGIN_S = 0.5
HEAD_SILENT_S = 5.0
Call: TypeAlias = Callable[[Attempt, FaultyCluster], None]
"""An action on the cluster for an attempt, such as to start or to cancel it."""


class FaultyLink:
    """The link to a simulated cluster, which loses, delays and repeats messages. ``state`` is the state as the control
    plane knows it; ``agent`` is the session of the living agent, None without one."""

    def __init__(
        self, cluster: FaultyCluster, executor: FaultyExecutor, *, heartbeat_s: float, lease_s: float, lost_s: float
    ) -> None:
        self._cluster, self._executor, self._driver = cluster, executor, executor.driver
        self._rng = executor.random_stream(f"link {cluster.name}")
        self._heartbeat_s, self._lease_s, self._lost_s = heartbeat_s, lease_s, lost_s
        self.connected, self.dashboard_ok, self.may_link = True, True, True
        self.state: Literal["none", "starting", "up", "down"] = "none"
        self.agent: int | None = None
        self.contact_epoch = 0
        """Changes whenever contact is lost or regained, so that timers of an earlier loss are recognised."""
        self._waiting: list[Attempt] = []
        """Attempts that wait for the agent to start."""
        self._outbox: list[tuple[Attempt, Call]] = []
        self._inbox: list[tuple[Attempt, events.Event]] = []
        """Calls and reports that could not be delivered without contact."""
        self._push_due = False
        self._busy_until = 0.0

    @property
    def reachable(self) -> bool:
        return self.connected and self._cluster.alive

    @property
    def dashboard_answers(self) -> bool:
        return self.dashboard_ok and self._cluster.head_silent_since is None

    # ---- calls

    def submit(self, attempt: Attempt) -> None:
        """Submit a task, an actor or a gang through the agent, which is started if there is none."""
        if self.state in ("none", "starting"):
            self._waiting.append(attempt)
            if self.state == "none":
                self.state = "starting"
                self._driver.after(self._rng.uniform(0.1, 1.5), self._start_agent)
        else:
            self.send(attempt, self._executor.on_arrival)

    def send(self, attempt: Attempt, call: Call) -> None:
        """Send a call to the cluster; what cannot be delivered now is kept."""
        if attempt in self._waiting:
            if call != self._executor.start:
                self._waiting.remove(attempt)
                attempt.ended = True
                self._driver.after(0.0, self._forward, events.AttemptFinished(*attempt.key, "cancelled"))
            else:
                attempt.has_slot, attempt.ahead = True, ""
                attempt.planned_parts = self._executor.plan(attempt.task.id, self._cluster.name)
        elif attempt.is_job or self.agent is not None:
            self._driver.after(self._latency(), self._deliver, attempt, call)

    def _deliver(self, attempt: Attempt, call: Call) -> None:
        if self._has_contact_for(attempt):
            call(attempt, self._cluster)
        else:
            self._outbox.append((attempt, call))

    def _has_contact_for(self, attempt: Attempt) -> bool:
        if not self.reachable:
            return False
        return self.dashboard_answers if attempt.is_job else self.agent == self._cluster.session

    def _start_agent(self) -> None:
        if self.reachable and self.may_link and self.dashboard_answers and not self._driver.draw_fault(self._rng, 0.05):
            self.agent = self._cluster.session
            self._link_up()
            waiting, self._waiting = self._waiting, []
            for attempt in waiting:
                self.send(attempt, self._executor.on_arrival)
            return
        self.state = "none"
        self._driver.record_fault(f"no link to {self._cluster.name} could be made")
        self._driver.feed(events.LinkFailed(self._cluster.name, "NO_LINK", "no agent could be started"))
        waiting, self._waiting = self._waiting, []
        for attempt in waiting:
            self._executor.refuse(attempt, FailureClass.CLUSTER, "NO_LINK", "no agent could be started")

    def _link_up(self) -> None:
        self.state = "up"
        self._driver.feed(events.LinkUp(self._cluster.name, "3.11.2", "2.60.0", f"s{self._cluster.session}"))
        self.schedule_snapshot()

    # ---- jobs

    def submit_job(self, attempt: Attempt) -> None:
        """Submit over HTTP: refused if it certainly did not arrive; after a lost answer the status is queried."""
        if not self.reachable or not self.dashboard_answers:
            delay = self._rng.uniform(0.1, 1.0)
            self._executor.refuse(attempt, FailureClass.CLUSTER, "NO_ANSWER", "no answer", delay)
        else:  # if contact is lost on the way, it may or may not have arrived
            self._driver.after(self._latency(), self._deliver, attempt, self._executor.on_arrival)

    # ---- reports

    def report(self, attempt: Attempt, event: events.Event) -> None:
        """Send an event to the control plane. Only a final event is certain to arrive, possibly late or twice."""
        name = f"{type(event).__name__} of {attempt.task.id}"
        if isinstance(event, _MAY_BE_LOST) and self._driver.draw_fault(attempt.rng, 0.03):
            self._driver.record_fault(f"{name} is lost")
            return
        if self._driver.draw_fault(attempt.rng, 0.04):
            self._driver.record_fault(f"{name} is late")
            delay = attempt.rng.choice([0.3, 1.0, 4.0])
        else:  # one direction of a link keeps its order
            self._busy_until = max(self._busy_until, self._driver.now + self._latency())
            delay = self._busy_until - self._driver.now
        self._driver.after(delay, self._receive, attempt, event, self._driver.epoch)
        if self._driver.draw_fault(attempt.rng, 0.03):
            self._driver.record_fault(f"{name} comes twice")
            self._driver.after(delay + attempt.rng.choice([0.0, 0.5, 5.0]), self._repeat, event)

    def _receive(self, attempt: Attempt, event: events.Event, epoch: int) -> None:
        if epoch != self._driver.epoch:
            return  # sent to a control plane that has crashed; the next one adopts the attempt
        if self._has_contact_for(attempt):
            self._forward(event)
        else:
            self._inbox.append((attempt, event))

    def _repeat(self, event: events.Event) -> None:
        """Feed an event again; of final events only those that were already received."""
        if (
            not isinstance(event, events.AttemptFinished)
            or (event.task_id, event.attempt) not in self._executor.unanswered
        ):
            self._driver.feed(event)

    def _forward(self, event: events.Event) -> None:
        if not isinstance(event, events.AttemptFinished) or self._executor.mark_answered(event):
            self._driver.feed(event)
        if isinstance(event, events.AttemptFinished):
            self.schedule_snapshot()

    # ---- snapshots

    def schedule_snapshot(self) -> None:
        """Let the agent push a snapshot soon, because the cluster changed."""
        if not self._push_due and self.state == "up":
            self._push_due = True
            self._driver.after(self._rng.uniform(0.05, 0.25), self._push_snapshot)

    def _push_snapshot(self) -> None:
        self._push_due = False
        if self._agent_can_report() and self._cluster.head_silent_since is None:
            if self._driver.draw_fault(self._rng, 0.02):
                self._driver.record_fault(f"a snapshot of {self._cluster.name} is lost")
                self.schedule_snapshot()
                return
            self._driver.feed(events.SnapshotTaken(self._cluster.snapshot(http=False)))

    def watch_head(self, silent_since: float) -> None:
        """The head has fallen silent: let the agent report it after a while, and then with every heartbeat."""
        self._driver.after(HEAD_SILENT_S, self._report_silent_head, silent_since)

    def _report_silent_head(self, silent_since: float) -> None:
        if self._cluster.head_silent_since != silent_since:
            return
        if self._agent_can_report():
            self._driver.feed(events.HeadSilent(self._cluster.name, self._driver.now - silent_since))
        self._driver.after(self._heartbeat_s, self._report_silent_head, silent_since)

    def _agent_can_report(self) -> bool:
        return self.state == "up" and self.reachable and self.agent == self._cluster.session

    def refresh(self) -> None:
        self._driver.after(self._rng.uniform(0.02, 0.5), self._answer_refresh, self._driver.epoch)

    def _answer_refresh(self, epoch: int) -> None:
        name = self._cluster.name
        if epoch != self._driver.epoch:
            return
        if not self.reachable or not self.dashboard_answers or self._driver.draw_fault(self._rng, 0.03):
            self._driver.feed(events.SnapshotFailed(name, "TIMEOUT", "no answer"))
            return
        stale = self._driver.draw_fault(self._rng, 0.2)
        taken = events.SnapshotTaken(self._cluster.snapshot(http=True, stale=stale))
        self._driver.feed(taken)
        if self._driver.draw_fault(self._rng, 0.05):
            self._driver.record_fault(f"a snapshot of {name} comes twice")
            self._driver.after(self._rng.choice([0.0, 1.0, 3.0]), self._driver.feed, taken)

    def check_dashboard(self) -> None:
        self._driver.after(self._rng.uniform(0.02, 0.5), self._answer_dashboard_check, self._driver.epoch)

    def _answer_dashboard_check(self, epoch: int) -> None:
        if epoch == self._driver.epoch:
            problem = None if self.reachable and self.dashboard_answers else "connection refused"
            self._driver.feed(events.DashboardChecked(self._cluster.name, problem))

    # ---- contact

    def cut(self) -> None:
        """Drop the connection: no message arrives until :meth:`restore`."""
        self.connected = False
        self.lose_contact()

    def lose_contact(self) -> None:
        """The agent does not answer any more: start the heartbeat, lease and loss timers."""
        self.contact_epoch += 1
        self._driver.after(3 * self._heartbeat_s, self._heartbeats_missed, self.contact_epoch)
        self._driver.after(self._lease_s - LEASE_MARGIN_S, self._expire_lease, self.contact_epoch)
        self._driver.after(self._lost_s + self._rng.uniform(0.1, 1.0), self._declare_lost, self.contact_epoch)

    def _link_down(self, sentence: str) -> None:
        self.state = "down"
        self._driver.feed(events.LinkDown(self._cluster.name, sentence))

    def _heartbeats_missed(self, epoch: int) -> None:
        if epoch == self.contact_epoch and self.state == "up":
            self._link_down("no heartbeat")

    def _expire_lease(self, epoch: int) -> None:
        """On the agent's own clock: it ends what it runs, and itself."""
        if epoch == self.contact_epoch and self.agent is not None:
            self.agent = None
            for attempt in [one for one in self._executor.unanswered_on(self._cluster.name, jobs=False) if one.arrived]:
                self._cluster.end(attempt, "lease")
            self.drop_buffered_calls()

    def _declare_lost(self, epoch: int) -> None:
        if epoch == self.contact_epoch and self.state == "down":
            self._close("no message for lost_after_s", "CLUSTER_LOST")

    def check_processes(self, epoch: int) -> None:
        """Is the agent dead with all its workers? The control plane finds out if it is on the same machine."""
        if epoch != self.contact_epoch or self.state not in ("up", "down"):
            return
        if self.agent is not None or not self.workers_are_dead():
            self._driver.after(1.0, self.check_processes, epoch)
            return
        if self.state == "up":
            self._link_down("the connection was closed")
        sentence = "none of its processes is alive"
        self._driver.feed(events.ProcessesDead(self._cluster.name, sentence))
        self._close(sentence, codes.PROCESSES_DEAD)

    def workers_are_dead(self) -> bool:
        """Whether nothing that was sent through the agent runs any more."""
        return all(one.is_job for one in self._cluster.running.values())

    def restore(self) -> None:
        """Contact is possible again, to the session that runs now."""
        self.connected = True
        self.contact_epoch += 1
        if not self._cluster.alive:
            self.lose_contact()
            return
        if self.state == "down" and self.agent == self._cluster.session:
            self._link_up()
        elif self.state in ("up", "down") and self.agent != self._cluster.session:
            if self.state == "up":
                self._link_down("the agent is gone")
            self._driver.after(self._rng.uniform(0.5, 2.0), self._agent_job_ended, self.contact_epoch)
        self.deliver_buffered()

    def reconnect(self) -> None:
        """After a restart of the control plane: a living agent dials back; without one, wait until it must be dead."""
        if self.state in ("none", "starting"):
            return
        self.contact_epoch += 1
        if self.reachable and self.agent == self._cluster.session:
            self._link_up()
            return
        self._link_down("it has not dialled back")
        if self.reachable:
            self._driver.after(self._rng.uniform(0.5, 2.0), self._agent_job_ended, self.contact_epoch)
        else:
            self.lose_contact()

    def _agent_job_ended(self, epoch: int) -> None:
        """The dashboard reports that the agent's job has ended."""
        if epoch == self.contact_epoch and self.state == "down":
            restarted = self._cluster.session > 1
            self._close("the agent has ended", codes.CLUSTER_RESTARTED if restarted else "CLUSTER_LOST")

    def _close(self, sentence: str, code: str) -> None:
        self.state, self.agent = "none", None
        self.drop_buffered_calls()
        lost = self._executor.unanswered_on(self._cluster.name, jobs=False)
        self._executor.fail_lost([one for one in lost if one not in self._waiting], sentence, code)
        self._driver.feed(events.LinkClosed(self._cluster.name, sentence))

    def drop_buffered_calls(self) -> None:
        """Drop what was buffered for the agent; what was buffered for jobs stays."""
        self._outbox = [(attempt, call) for attempt, call in self._outbox if attempt.is_job]
        self._inbox = [(attempt, event) for attempt, event in self._inbox if attempt.is_job]

    def deliver_buffered(self) -> None:
        outbox, self._outbox = self._outbox, []
        inbox, self._inbox = self._inbox, []
        for attempt, event in inbox:
            self._receive(attempt, event, self._driver.epoch)
        for attempt, call in outbox:
            self._deliver(attempt, call)

    def _latency(self) -> float:
        return self._rng.choice([0.0, 0.001, 0.02, 0.2])
