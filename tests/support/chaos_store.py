"""Chaos rounds: real clusters under load, while the service is killed at random moments and at named code points."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
from ray_multicluster_scheduler.common.process import CRASH_VARIABLE
from ray_multicluster_scheduler.control_plane.store import SqliteStore
from tests.support.chaos_actor_history import ActorHistory, actor_violations, read_ran
from tests.support.chaos_actors import CalledActor
from tests.support.chaos_history import History, read_notes, violations
from tests.support.running_service import RunningService

POINTS = (
    "after commit",
    "before send",
    "after send",
    "before acknowledge",
    "in start-up",
    "call taken",
    "before report",
)
MAX_PASSED = {"call taken": 40, "before report": 20}
"""How often such a point is passed at most before the service dies there; otherwise 6 times."""
TASKS = 12
TIMEOUT_S = 180.0
AFTERWARDS_S = 0.5
"""Actors are called for this long after the service has restarted."""


def recorded_work(path: str, seconds: float, ballast: bytes = b"") -> str:
    """Records its id, start and end in a file. ``ballast`` only adds bytes to the call."""
    import json
    import time

    from ray_multicluster_scheduler import current

    me = current()

    def note(what: str) -> None:
        line = {"item": me.id, "attempt": me.attempt, "fence": me.fence, "what": what, "at": time.time()}
        with open(path, "a") as file:
            file.write(json.dumps(line) + "\n")

    note("began")
    time.sleep(seconds)
    note("ended")
    return str(me.id)


recorded_work.__module__ = "__main__"  # pickled by value, so that no module has to be shipped

_JOB = """
import json, os, time
def note(what):
    line = {"item": os.environ["RMCS_TASK_ID"], "attempt": int(os.environ["RMCS_ATTEMPT"]),
            "fence": int(os.environ["RMCS_FENCE"]), "what": what, "at": time.time()}
    with open(PATH, "a") as file:
        file.write(json.dumps(line) + chr(10))
note("began"); time.sleep(1); note("ended")
"""


def write_job(folder: Path, notes: Path) -> str:
    """The entrypoint of a job that records the same."""
    script = folder / "job.py"
    script.write_text(_JOB.replace("PATH", repr(str(notes))))
    return f"python {script}"


def read_stored(state: Path, items: Iterable[str]) -> dict[str, tuple[str, int]]:
    """State and attempt of each stored item. Opens the store, so its service must have ended."""
    store = SqliteStore(state)
    try:
        found = {item: store.item(item) for item in items}
    finally:
        store.close()
    return {item: (str(one.status.state), one.status.attempt) for item, one in found.items() if one is not None}


class ChaosStore:
    """One service, killed once in every round; afterwards each accepted item must have run once."""

    def __init__(self, config: Path, folder: Path, seed: int = 1, log: Callable[[str], object] = print) -> None:
        self.folder, self._log = folder, log
        self.service = RunningService(config, folder / "state")
        self._random = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.history = History()
        self.actors: list[ActorHistory] = []
        self._notes, self._runs = folder / "notes.jsonl", folder / "calls.jsonl"
        self._job = write_job(folder, self._notes)

    def run(self, rounds: int) -> list[str]:
        """Run the rounds. Returns the violated guarantees."""
        self.service.start()
        try:
            with UnifiedScheduler(address=self.service.address, token=self.service.token) as client:
                for number, point in zip(range(rounds), self._points(rounds), strict=False):
                    began = time.monotonic()
                    self._round(client, point, jobs=1 if number % 3 == 0 else 0)
                    self._log(f"round {number + 1}: {point}, {time.monotonic() - began:.1f} s")
            self.service.stop()
        finally:
            self.service.__exit__()
        return self.judge()

    def judge(self) -> list[str]:
        """Check files and store. Opens the store, so the service must have ended."""
        self.history.notes = read_notes(self._notes)
        self.history.stored = read_stored(self.folder / "state", self.history.acknowledged)
        ran = read_ran(self._runs)
        for explanation in self.actors:
            explanation.stored = self.history.stored.get(explanation.item)
            explanation.made = [note for note in self.history.notes if note.item == explanation.item]
            explanation.ran = [run for run in ran if run.item == explanation.item]
        return [
            *violations(self.history),
            *(found for explanation in self.actors for found in actor_violations(explanation)),
        ]

    def _points(self, rounds: int) -> Iterator[str]:
        """Half of the rounds at random moments, the others at named places in turn."""
        for number in range(rounds):
            yield POINTS[number // 2 % len(POINTS)] if number % 2 else "at random"

    def _round(self, client: UnifiedScheduler, point: str, jobs: int) -> None:
        actors = [self._called_actor(client)]
        if point not in ("at random", "in start-up"):  # the process must know the point at which to die
            self.service.stop()
            # Programs are waiting, so it may reach that point before it is ready.
            place = f"{point}:{self._random.randint(1, MAX_PASSED.get(point, 6))}"
            self.service.start({CRASH_VARIABLE: place}, wait=False)
        handles: list[Handle] = [
            client.submit_task_async(recorded_work, (str(self._notes), self._random.uniform(0.05, 1.5)))
            for _ in range(TASKS)
        ]
        actors.append(self._called_actor(client))
        handles += [client.submit_job_async(self._job) for _ in range(jobs)]
        if point == "at random":
            time.sleep(self._random.uniform(0.0, 4.0))
            self.service.kill()
        elif point == "in start-up":
            time.sleep(self._random.uniform(0.0, 2.0))
            self.service.kill()
            self.service.start({CRASH_VARIABLE: point}, wait=False)
            self.service.process.wait(60)
        else:
            try:
                self.service.process.wait(60)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"the service never reached the point {point!r}") from None
        self.kills[point] += 1
        self.service.start()
        for handle in handles:
            error = handle.exception(TIMEOUT_S)
            self.history.acknowledged.add(handle.id)
            self.history.answers[handle.id] = str(handle.state)
            if error is not None:
                self._log(f"{handle.id}: {error!r}")
        time.sleep(AFTERWARDS_S)
        for actor in actors:
            self._end(actor)

    def _called_actor(self, client: UnifiedScheduler) -> CalledActor:
        return CalledActor(client, self._notes, self._runs, self._random.getrandbits(32))

    def _end(self, actor: CalledActor) -> None:
        state, calls = actor.finish(TIMEOUT_S)
        self.history.acknowledged.add(actor.id)
        self.history.answers[actor.id] = state
        self.actors.append(ActorHistory(actor.id, None, state, calls=calls))
        with (self.folder / "answers.jsonl").open("a") as file:
            file.writelines(json.dumps({"item": actor.id, **asdict(call)}) + "\n" for call in calls)
        lost = [call for call in calls if call.value is None]
        if lost:
            self._log(f"{actor.id}: {len(lost)} of {len(calls)} calls were lost, the first: {lost[0].message}")


def summary(chaos: ChaosStore) -> str:
    """One line of JSON."""
    ran = {note.item for note in chaos.history.notes}
    attempts = Counter(attempt for _, attempt in chaos.history.stored.values())
    calls = [call for explanation in chaos.actors for call in explanation.calls]
    figures = {
        "kills": dict(chaos.kills),
        "accepted": len(chaos.history.acknowledged),
        "ran": len(ran),
        "actors": len(chaos.actors),
        "calls answered": sum(call.value is not None for call in calls),
        "calls lost with an error": sum(call.error is not None for call in calls),
        "of those, calls that ran": sum(explanation.ran_though_lost() for explanation in chaos.actors),
        "attempts": {str(number): many for number, many in sorted(attempts.items())},
    }
    return json.dumps(figures)
