"""Actors of a chaos round: created through the service, called continuously, and killed at the end."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from ray_multicluster_scheduler import SchedulerError, TaskTimeoutError, UnifiedScheduler
from ray_multicluster_scheduler.app.client_api.handles.call_handle import ActorCallHandle
from tests.support.chaos_actor_history import Called

CALLERS = 2
_SLOWEST_S = 0.03
_MAX_PAUSE_S = 0.3
"""With both limits, an actor is busy a fifth of the time, so waiting calls are processed quickly."""


class RecordingActor:
    """Records its creation and each call in files."""

    def __init__(self, notes: str, runs: str) -> None:
        import time

        from ray_multicluster_scheduler import current

        self._me, self._runs = current(), runs
        me = self._me
        line = {"item": me.id, "attempt": me.attempt, "fence": me.fence, "what": "began", "at": time.time()}
        self._write(notes, line)

    def call(self, caller: int, number: int, seconds: float) -> str:
        import secrets
        import time

        began, token = time.time(), secrets.token_hex(8)
        time.sleep(seconds)
        line = {"item": self._me.id, "attempt": self._me.attempt, "caller": caller, "number": number}
        self._write(self._runs, {**line, "token": token, "began": began, "ended": time.time()})
        return token

    def _write(self, path: str, line: dict[str, object]) -> None:
        import json

        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


RecordingActor.__module__ = "__main__"  # pickled by value, so that no module has to be shipped


class CalledActor:
    """One actor, and threads that call it until :meth:`finish`."""

    def __init__(self, client: UnifiedScheduler, notes: Path, runs: Path, seed: int) -> None:
        self._actor = client.submit_actor_async(
            RecordingActor, (str(notes), str(runs)), resource_requirements={"CPU": 0}, max_restarts=0
        )
        self.id: str = self._actor.id
        self._stop = threading.Event()
        self._handles: list[list[ActorCallHandle]] = [[] for _ in range(CALLERS)]
        self._threads = [
            threading.Thread(target=self._call, args=(caller, random.Random(f"{seed} {caller}")), daemon=True)
            for caller in range(CALLERS)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self, patience_s: float) -> tuple[str, list[Called]]:
        """Wait for all answers, kill it and wait for its end. Returns its final state and the calls."""
        deadline = time.monotonic() + patience_s
        self._stop.set()
        for thread in self._threads:
            thread.join()
        calls = [
            _answer(handle, caller, number, deadline)
            for caller, handles in enumerate(self._handles)
            for number, handle in enumerate(handles)
        ]
        problem = ""
        try:
            self._actor.ready(max(1.0, deadline - time.monotonic()))
        except SchedulerError as error:
            problem = f" after {error!r}"
        self._actor.kill()
        self._actor._item.wait(max(10.0, deadline - time.monotonic()))
        return f"{self._actor.state}{problem}", calls

    def _call(self, caller: int, chance: random.Random) -> None:
        handles = self._handles[caller]
        while not self._stop.is_set():
            handles.append(self._actor.call.remote(caller, len(handles), chance.uniform(0.0, _SLOWEST_S)))
            self._stop.wait(chance.uniform(0.0, _MAX_PAUSE_S))


def _answer(handle: ActorCallHandle, caller: int, number: int, deadline: float) -> Called:
    try:
        return Called(caller, number, value=handle.result(max(0.1, deadline - time.monotonic())))
    except Exception as error:  # noqa: BLE001 - the checker judges any error
        if isinstance(error, TaskTimeoutError) and not handle.done():
            return Called(caller, number, message=str(error))
        return Called(
            caller, number, error=type(error).__name__, ours=isinstance(error, SchedulerError), message=str(error)
        )
