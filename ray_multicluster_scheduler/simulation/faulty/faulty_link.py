"""Link: the way to one cluster: calls, answers, heartbeats and the lease, the dashboard, and what goes wrong on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.simulation.faulty.faulty_cluster import Attempt, FarCluster

if TYPE_CHECKING:
    from ray_multicluster_scheduler.simulation.faulty.faulty_executor import Hands

_MAY_BE_LOST = events.DispatchAccepted | events.Started | events.PlaceMoved
LEASE_MARGIN_S = 0.5


class Link:
    """``state`` is what the control plane thinks; ``agent`` is the session in which our agent lives, if it does."""

    def __init__(self, cluster: FarCluster, hands: Hands, *, heartbeat_s: float, lease_s: float, lost_s: float) -> None:
        self._cluster, self._hands, self._desk = cluster, hands, hands.desk
        self._chance = hands.stream(f"link {cluster.name}")
        self._heartbeat_s, self._lease_s, self._lost_s = heartbeat_s, lease_s, lost_s
        self.contact, self.dashboard_ok, self.may_link = True, True, True
        self.state: Literal["none", "starting", "up", "down"] = "none"
        self.agent: int | None = None
        self._cuts = 0
        self._waiting: list[Attempt] = []
        self._unsent: list[tuple[Attempt, Callable[[Attempt, FarCluster], None]]] = []
        self._unheard: list[tuple[Attempt, events.Event]] = []
        self._push_due = False
        self._busy_until = 0.0

    @property
    def reachable(self) -> bool:
        return self.contact and self._cluster.alive

    # ---- calls

    def submit(self, one: Attempt) -> None:
        """A task, an actor or a gang: over the agent, which is started if there is none."""
        if self.state in ("none", "starting"):
            self._waiting.append(one)
            if self.state == "none":
                self.state = "starting"
                self._desk.after(self._chance.uniform(0.1, 1.5), self._try_to_link)
        else:
            self.order(one, self._hands.arrive)

    def order(self, one: Attempt, deed: Callable[[Attempt, FarCluster], None]) -> None:
        """Let this be done over there; what cannot get there now is kept."""
        if one in self._waiting:
            if deed != self._hands.start:
                self._waiting.remove(one)
                one.over = True
                self._desk.after(0.0, self._answer, events.AttemptFinished(*one.key, "cancelled"))
            else:
                one.has_place, one.ahead = True, ""
                one.planned = self._hands.plan(one.task.id, self._cluster.name)
        elif one.is_job or self.agent is not None:
            self._desk.after(self._latency(), self._get_there, one, deed)

    def _get_there(self, one: Attempt, deed: Callable[[Attempt, FarCluster], None]) -> None:
        if self._is_there(one):
            deed(one, self._cluster)
        else:
            self._unsent.append((one, deed))

    def _is_there(self, one: Attempt) -> bool:
        if not self.reachable:
            return False
        return self.dashboard_ok if one.is_job else self.agent == self._cluster.session

    def _try_to_link(self) -> None:
        if self.reachable and self.may_link and self.dashboard_ok and not self._desk.suffers(self._chance, 0.05):
            self.state, self.agent = "up", self._cluster.session
            self._say_up()
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                self.order(one, self._hands.arrive)
            return
        self.state = "none"
        self._desk.fault(f"no link to {self._cluster.name} could be made")
        self._desk.feed(events.LinkFailed(self._cluster.name, "NO_LINK", "no agent could be started"))
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._hands.refuse(one, FailureClass.CLUSTER, "NO_LINK", "no agent could be started")

    def _say_up(self) -> None:
        self._desk.feed(events.LinkUp(self._cluster.name, "3.11.2", "2.60.0", f"s{self._cluster.session}"))
        self.changed()

    # ---- jobs

    def post_job(self, one: Attempt) -> None:
        """Over HTTP. What was certainly not taken is refused; an answer that was lost is asked for again."""
        if not self.reachable or not self.dashboard_ok:
            delay = self._chance.uniform(0.1, 1.0)
            self._hands.refuse(one, FailureClass.CLUSTER, "NO_ANSWER", "nobody answers", delay)
        else:
            self._desk.after(self._latency(), self._take_job, one)

    def _take_job(self, one: Attempt) -> None:
        if self.reachable and self.dashboard_ok:
            self._hands.arrive(one, self._cluster)
        else:  # on its way when the cluster was cut: nobody knows
            self._unsent.append((one, self._hands.arrive))

    # ---- answers

    def tell(self, one: Attempt, event: events.Event) -> None:
        """An answer sets out. Only an end is certain to arrive, be it late or twice."""
        if isinstance(event, _MAY_BE_LOST) and self._desk.suffers(one.chance, 0.03):
            self._desk.fault(f"{type(event).__name__} of {one.task.id} is lost")
            return
        if self._desk.suffers(one.chance, 0.04):
            self._desk.fault(f"{type(event).__name__} of {one.task.id} is late")
            delay = one.chance.choice([0.3, 1.0, 4.0])
        else:  # what goes one way keeps its order
            self._busy_until = max(self._busy_until, self._desk.now + self._latency())
            delay = self._busy_until - self._desk.now
        self._desk.after(delay, self._hear, one, event, self._desk.epoch)
        if self._desk.suffers(one.chance, 0.03):
            self._desk.fault(f"{type(event).__name__} of {one.task.id} comes twice")
            self._desk.after(delay + one.chance.choice([0.0, 0.5, 5.0]), self._repeat, event)

    def _hear(self, one: Attempt, event: events.Event, epoch: int) -> None:
        if epoch != self._desk.epoch:
            return  # it was on its way to another life; whoever asks is told again
        if self._is_there(one):
            self._answer(event)
        else:
            self._unheard.append((one, event))

    def _repeat(self, event: events.Event) -> None:
        """Of an end only what was answered is repeated: an end that was never heard is no news yet."""
        if not isinstance(event, events.AttemptFinished) or (event.task_id, event.attempt) not in self._hands.attempts:
            self._desk.feed(event)

    def _answer(self, event: events.Event) -> None:
        if not isinstance(event, events.AttemptFinished) or self._hands.answered(event):
            self._desk.feed(event)
        if isinstance(event, events.AttemptFinished):
            self.changed()

    # ---- snapshots

    def changed(self) -> None:
        """The agent pushes what the cluster has, soon after it changed."""
        if not self._push_due and self.state == "up":
            self._push_due = True
            self._desk.after(self._chance.uniform(0.05, 0.25), self._push)

    def _push(self) -> None:
        self._push_due = False
        if self.state == "up" and self.reachable and self.agent == self._cluster.session:
            if self._desk.suffers(self._chance, 0.02):
                self._desk.fault(f"a snapshot of {self._cluster.name} is lost")
                self.changed()
                return
            self._desk.feed(events.SnapshotTaken(self._cluster.snapshot(http=False)))

    def refresh(self) -> None:
        self._desk.after(self._chance.uniform(0.02, 0.5), self._say_snapshot, self._desk.epoch)

    def _say_snapshot(self, epoch: int) -> None:
        name = self._cluster.name
        if epoch != self._desk.epoch:
            return
        if not self.reachable or not self.dashboard_ok or self._desk.suffers(self._chance, 0.03):
            self._desk.feed(events.SnapshotFailed(name, "TIMEOUT", "no answer"))
            return
        stale = self._desk.suffers(self._chance, 0.2)
        taken = events.SnapshotTaken(self._cluster.snapshot(http=True, stale=stale))
        self._desk.feed(taken)
        if self._desk.suffers(self._chance, 0.05):
            self._desk.fault(f"a snapshot of {name} comes twice")
            self._desk.after(self._chance.choice([0.0, 1.0, 3.0]), self._desk.feed, taken)

    def check_dashboard(self) -> None:
        self._desk.after(self._chance.uniform(0.02, 0.5), self._say_dashboard, self._desk.epoch)

    def _say_dashboard(self, epoch: int) -> None:
        if epoch != self._desk.epoch:
            return
        well = self.reachable and self.dashboard_ok
        self._desk.feed(events.DashboardChecked(self._cluster.name, None if well else "connection refused"))

    def begin_anew(self) -> None:
        """Another control plane: agents that live dial back to it, and it waits until the others must be dead."""
        if self.state in ("none", "starting"):
            return
        self._cuts += 1
        if self.reachable and self.agent == self._cluster.session:
            self.state = "up"
            self._say_up()
            return
        self.state = "down"
        self._desk.feed(events.LinkDown(self._cluster.name, "it has not dialled back"))
        if self.reachable:
            self._desk.after(self._chance.uniform(0.5, 2.0), self._see_the_end, self._cuts)
        else:
            self.silent()

    # ---- contact

    def cut(self) -> None:
        """Nothing gets through from now on."""
        self.contact = False
        self.silent()

    def silent(self) -> None:
        """The agent does not answer, for whatever reason."""
        self._cuts += 1
        self._desk.after(3 * self._heartbeat_s, self._missed, self._cuts)
        self._desk.after(self._lease_s - LEASE_MARGIN_S, self._lease_over, self._cuts)
        self._desk.after(self._lost_s + self._chance.uniform(0.1, 1.0), self._give_up, self._cuts)

    def _missed(self, cut: int) -> None:
        if cut == self._cuts and self.state == "up":
            self.state = "down"
            self._desk.feed(events.LinkDown(self._cluster.name, "no heartbeat"))

    def _lease_over(self, cut: int) -> None:
        """On the agent's own clock: it ends what it runs, and itself."""
        if cut == self._cuts and self.agent is not None:
            self.agent = None
            for one in [one for one in self._hands.on(self._cluster.name, jobs=False) if one.arrived]:
                self._cluster.end(one, "lease")
            self.forget()

    def _give_up(self, cut: int) -> None:
        if cut == self._cuts and self.state == "down":
            self._close("nothing was heard for lost_after_s", restarted=False)

    def restore(self) -> None:
        """There is contact again, to whatever is there now."""
        self.contact = True
        self._cuts += 1
        if not self._cluster.alive:
            self.silent()
            return
        if self.state == "down" and self.agent == self._cluster.session:
            self.state = "up"
            self._say_up()
        elif self.state in ("up", "down") and self.agent != self._cluster.session:
            if self.state == "up":
                self.state = "down"
                self._desk.feed(events.LinkDown(self._cluster.name, "the agent is gone"))
            self._desk.after(self._chance.uniform(0.5, 2.0), self._see_the_end, self._cuts)
        self.catch_up()

    def _see_the_end(self, cut: int) -> None:
        """The dashboard says that the agent's job is over."""
        if cut == self._cuts and self.state == "down":
            self._close("the agent has ended", restarted=self._cluster.session > 1)

    def _close(self, sentence: str, *, restarted: bool) -> None:
        self.state, self.agent = "none", None
        self.forget()
        gone = self._hands.on(self._cluster.name, jobs=False)
        self._hands.declare_dead([one for one in gone if one not in self._waiting], sentence, restarted=restarted)
        self._desk.feed(events.LinkClosed(self._cluster.name, sentence))

    def forget(self) -> None:
        self._unsent = [(one, deed) for one, deed in self._unsent if one.is_job]
        self._unheard = [(one, event) for one, event in self._unheard if one.is_job]

    def catch_up(self) -> None:
        """What was kept on either side gets through."""
        unsent, self._unsent = self._unsent, []
        unheard, self._unheard = self._unheard, []
        for one, event in unheard:
            self._hear(one, event, self._desk.epoch)
        for one, deed in unsent:
            self._get_there(one, deed)

    def _latency(self) -> float:
        return self._chance.choice([0.0, 0.001, 0.02, 0.2])
