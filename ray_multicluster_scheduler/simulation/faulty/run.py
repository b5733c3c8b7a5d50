"""One faulty run: a script, played against a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from ray_multicluster_scheduler.common.model import ClusterMetadata
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits, Settings
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.simulation.faulty.faulty_cluster import Attempt, FarCluster
from ray_multicluster_scheduler.simulation.faulty.faulty_executor import Hands
from ray_multicluster_scheduler.simulation.faulty.faulty_link import Link
from ray_multicluster_scheduler.simulation.faulty.machine_driver import Desk
from ray_multicluster_scheduler.simulation.faulty.scenario import BEGIN, OWNERS, Script
from ray_multicluster_scheduler.simulation.faulty.state_dump import differences, look
from ray_multicluster_scheduler.simulation.history import (
    AttemptEnded,
    ControlPlaneCrashed,
    ControlPlaneRestarted,
    History,
    Parts,
    RunSetup,
)

PATIENCE_S = 4000.0
"""Once nothing goes wrong any more, all must be over after this."""

MakeMachine = Callable[[Settings, tuple[ClusterMetadata, ...]], SchedulerMachine]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run. ``error`` is what the machine raised, if it did; the history then ends there."""

    history: History
    steps: int
    faults: int
    error: BaseException | None = None


class FaultyRun:
    """Methods named in the script's deeds are the deeds. Everything heals after the last of them."""

    def __init__(
        self,
        script: Script,
        make: MakeMachine = SchedulerMachine,
        hands: type[Hands] = Hands,
    ) -> None:
        self.script, self._make = script, make
        self.settings = Settings(**script.settings)
        self.desk = Desk(make(self.settings, script.clusters), BEGIN, _stream(script, "timers"), script.rate)
        self.hands = hands(self.desk, script.seed, script.items.__getitem__, self._plan)
        self.desk.on_death = self._die_and_come_back
        self._incomplete: set[str] = set()
        self._limited: set[str] = set()
        self.desk.note(RunSetup(BEGIN, dict(script.settings), script.clusters))
        for metadata in script.clusters:
            far = FarCluster(metadata.name, script.nodes[metadata.name], self.hands)
            link = Link(
                far,
                self.hands,
                heartbeat_s=self.settings.heartbeat_s,
                lease_s=self.settings.lease_s,
                lost_s=self.settings.lost_after_s,
            )
            self.hands.add(far, link)
            far.boot()

    def play(self) -> Outcome:
        """All of it, to the end."""
        error: BaseException | None = None
        try:
            for deed in self.script.deeds:
                self.desk.run_until(deed.at)
                self.desk.now = max(self.desk.now, deed.at)
                if deed.fault:
                    self.desk.fault(f"{deed.what} {' '.join(map(str, deed.given))}")
                getattr(self, deed.what)(*deed.given)
            self.settle()
        except Exception as problem:  # noqa: BLE001 - a defect of the machine: the history up to there is what is wanted
            error = problem
        return Outcome(self.desk.history, self.desk.steps, self.desk.faults, error)

    def _plan(self, task_id: str, cluster: str) -> Parts:
        state = self.desk.machine.registry.find(cluster)
        reservation = None if state is None else state.ledger.reservations.get(task_id)
        return {} if reservation is None else {node: dict(part) for node, part in reservation.parts.items()}

    def calm(self) -> None:
        """Nothing goes wrong from here on."""
        self.desk.rate = 0.0
        for owner in OWNERS:
            self.desk.feed(events.QueueResumed("owner", owner))
        for owner in sorted(self._limited):
            self._limits_end(owner)
        for metadata in self.script.clusters:
            self._heal(metadata)
        for task_id in sorted(self._incomplete):
            self.arguments(task_id, well=True)
        for task_id in self.script.items:
            self.desk.feed(events.ReleaseRequested(task_id))

    def settle(self) -> None:
        """All comes to its end."""
        self.desk.run_until(self.desk.now + 1.0)
        self.calm()
        self.desk.run_until(self.desk.now + PATIENCE_S)
        self.look()

    def _heal(self, metadata: ClusterMetadata) -> None:
        far, link = self.hands.clusters[metadata.name], self.hands.links[metadata.name]
        self.hands.refusing.discard(metadata.name)
        self.desk.feed(events.ClusterChanged(metadata.name, metadata, cordoned=False))
        self.desk.feed(events.QueueResumed("cluster", metadata.name))
        link.may_link, link.dashboard_ok = True, True
        if not far.alive:
            self._come_back(metadata.name)
        if not link.contact:
            link.restore()
        for node, total in far.built.items():
            suffix = "" if far.session == 1 else f"s{far.session}"
            far.add_node(f"{node}{suffix}", total)
        far.others = {}
        link.catch_up()
        link.changed()

    # ---- what people do

    def submit(self, task_id: str, waits_for: str) -> None:
        self.desk.feed(events.Submitted(self.script.items[task_id], waits_for))
        if waits_for:
            self._incomplete.add(task_id)

    def arguments(self, task_id: str, well: bool) -> None:
        self._incomplete.discard(task_id)
        failed = events.ArgumentsFailed(task_id, "its argument failed", "TaskCancelledError")
        self.desk.feed(events.ArgumentsReady(task_id) if well else failed)

    def cancel(self, task_id: str, force: bool) -> None:
        self.desk.feed(events.CancelRequested(task_id, "somebody wants it to end", force))

    def hold(self, task_id: str, seconds: float) -> None:
        self.desk.feed(events.HoldRequested(task_id, "not yet"))
        self.desk.after(seconds, self.desk.feed, events.ReleaseRequested(task_id))

    def prioritise(self, task_id: str, priority: int) -> None:
        self.desk.feed(events.PriorityChanged(task_id, priority))

    def pause(self, what: Literal["cluster", "owner"], name: str, seconds: float) -> None:
        self.desk.feed(events.QueuePaused(what, name, "for now"))
        self.desk.after(seconds, self.desk.feed, events.QueueResumed(what, name))

    def limit(self, owner: str, weight: float, running: int | None, queued: int | None, seconds: float) -> None:
        self._limited.add(owner)
        limits = OwnerLimits(weight=weight, max_running=running, max_queued=queued)
        self.desk.feed(events.OwnerLimitsChanged(owner, limits))
        self.desk.after(seconds, self._limits_end, owner)

    def _limits_end(self, owner: str) -> None:
        self._limited.discard(owner)
        self.desk.feed(events.OwnerLimitsChanged(owner, None))

    def cordon(self, name: str, seconds: float) -> None:
        metadata = self._metadata(name)
        self.desk.feed(events.ClusterChanged(name, metadata, cordoned=True))
        self.desk.after(seconds, self.desk.feed, events.ClusterChanged(name, metadata, cordoned=False))

    def remove(self, name: str, seconds: float) -> None:
        self.desk.feed(events.ClusterChanged(name, None))
        self.desk.after(seconds, self._register, name)

    def _register(self, name: str) -> None:
        self.desk.feed(events.ClusterChanged(name, self._metadata(name)))
        if self.hands.links[name].state == "up":
            self.hands.links[name].changed()

    def _metadata(self, name: str) -> ClusterMetadata:
        return next(one for one in self.script.clusters if one.name == name)

    def look(self, deeply: bool = True) -> None:
        """What does the machine say of itself? ``deeply``: and is one that is rebuilt from its rows the same?"""
        desk = self.desk
        if not desk.owes:
            unequal = differences(desk.machine, desk.rows, self._another, desk.now) if deeply else ()
            desk.note(look(desk.machine, desk.now, unequal))

    def _another(self) -> SchedulerMachine:
        return self._make(self.settings, self.desk.machine.registry.list())

    # ---- what goes wrong

    def cut(self, name: str, seconds: float) -> None:
        link = self.hands.links[name]
        if link.contact:
            link.cut()
            self.desk.after(seconds, self._mend, link)

    def _mend(self, link: Link) -> None:
        if not link.contact:
            link.restore()

    def die(self, name: str, seconds: float) -> None:
        """The head dies. Worker nodes may run on for a while what nobody hears of any more."""
        far, link = self.hands.clusters[name], self.hands.links[name]
        if not far.alive:
            return
        head = next(iter(far.nodes))
        chance = self.hands.stream(f"death of {name} {self.desk.now}")
        link.agent = None
        for one in far.halt():
            lives_on = not one.is_job and one.parts and head not in one.parts and chance.random() < 0.5
            longest = min(self.settings.node_grace_s, self.settings.lease_s) - 0.5
            if lives_on:
                self.desk.after(chance.uniform(0.1, longest), self._die_out, one, far)
            else:
                self._die_out(one, far)
        link.forget()
        link.silent()
        self.desk.after(seconds, self._come_back, name)
        if chance.random() < 0.5:
            self.desk.after(self.settings.lease_s, self._declare_dead, name, far.session)

    def _declare_dead(self, name: str, session: int) -> None:
        """An operator who knows says so."""
        far = self.hands.clusters[name]
        if not far.alive and far.session == session:
            self.desk.feed(events.ClusterDeclaredDead(name, "it burnt"))

    def _die_out(self, one: Attempt, far: FarCluster) -> None:
        one.over = True
        if far.running.pop(one.key, None) is not None:
            self.desk.note(AttemptEnded(self.desk.now, far.name, *one.key, "died"))

    def _come_back(self, name: str) -> None:
        """As another session, which knows nothing of the one before."""
        far, link = self.hands.clusters[name], self.hands.links[name]
        if far.alive:
            return
        far.boot()
        gone = [one for one in self.hands.on(name, jobs=True) if one.arrived]
        if link.contact:
            link.restore()
        self.desk.after(1.0, self._miss_jobs, gone, link)

    def _miss_jobs(self, gone: list[Attempt], link: Link) -> None:
        """The new session has never heard of these jobs."""
        if link.reachable and link.dashboard_ok:
            self.hands.declare_dead(gone, "the cluster restarted", restarted=True)
        else:
            self.desk.after(1.0, self._miss_jobs, gone, link)

    def lose_node(self, name: str, node: str, seconds: float) -> None:
        far = self.hands.clusters[name]
        if far.session == 1 and node in far.nodes:
            far.drop_node(node)
            self.hands.links[name].changed()
            self.desk.after(seconds, self._node_back, name, node, far.session)

    def _node_back(self, name: str, node: str, session: int) -> None:
        far = self.hands.clusters[name]
        if far.session == session:
            far.add_node(node, far.built[node])
            self.hands.links[name].changed()

    def others(self, name: str, share: float, seconds: float) -> None:
        """Somebody else uses a node."""
        far = self.hands.clusters[name]
        if far.alive:
            far.others[next(iter(far.nodes))] = share
            self.hands.links[name].changed()
            self.desk.after(seconds, self._others_leave, name)

    def _others_leave(self, name: str) -> None:
        far = self.hands.clusters[name]
        far.others = {}
        far.fill()
        self.hands.links[name].changed()

    def silence(self, name: str, seconds: float) -> None:
        """The dashboard answers nobody; the agent does."""
        self.hands.links[name].dashboard_ok = False
        self.desk.after(seconds, self._speak, name)

    def _speak(self, name: str) -> None:
        self.hands.links[name].dashboard_ok = True
        self.hands.links[name].catch_up()

    def no_links(self, name: str, seconds: float) -> None:
        self.hands.links[name].may_link = False
        self.desk.after(seconds, setattr, self.hands.links[name], "may_link", True)

    def refuse(self, name: str, seconds: float) -> None:
        self.hands.refusing.add(name)
        self.desk.after(seconds, self.hands.refusing.discard, name)

    def crash(self, amid: bool) -> None:
        """The control plane dies, now or ``amid`` its next answer, and is rebuilt from what it had persisted."""
        if amid:
            self.desk.dies_next = True
        else:
            self._die_and_come_back()

    def _die_and_come_back(self) -> None:
        self.desk.note(ControlPlaneCrashed(self.desk.now))
        another = self._another()
        self.desk.note(ControlPlaneRestarted(self.desk.now))
        self.desk.restart(another)
        for metadata in another.registry.list():
            self.hands.links[metadata.name].begin_anew()


def _stream(script: Script, name: str) -> Random:
    return Random(f"{script.seed} {name}")  # nosec B311 # a seed is to give the same again
