"""`python -m ray_multicluster_scheduler.scheduler.connection.connector`: started by a control plane only."""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from ray_multicluster_scheduler.scheduler.connection.connector import protocol as o
from ray_multicluster_scheduler.scheduler.connection.connector.diagnosis import Problem, check_answer, check_port

_PR_SET_PDEATHSIG = 1


class Voice:
    """Lines to whoever started us. Whatever else is printed here goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def say(self, event: str, **more: Any) -> None:
        try:
            self._out.write(json.dumps({"event": event, **more}).encode() + b"\n")
        except OSError:
            os._exit(0)  # nobody listens any more

    def fail(self, problem: Problem) -> NoReturn:
        self.say(o.FAILED, code=problem.code, sentence=problem.sentence)
        os._exit(1)


def main() -> NoReturn:
    """Never waits for Ray when it ends: that could take half a minute."""
    _end_with_our_parent()
    voice = Voice()
    order = o.Order.from_line(sys.stdin.buffer.readline())
    ears = Ears()
    try:
        voice.say(o.PHASE, phase=f"look whether {order.head} answers")
        check_port(order.head)
        if importlib.util.find_spec("ray") is None:
            raise Problem(o.NO_RAY, f"{sys.executable} has no ray")
        voice.say(o.PHASE, phase="import ray")
        try:
            check_answer(order.head, os.environ.get(o.TOKEN_VARIABLE))
            from ray_multicluster_scheduler.scheduler.connection.connector import session as cluster  # noqa: PLC0415 - imports ray
        except ImportError as error:
            raise Problem(o.NO_RAY, f"{sys.executable} cannot import what Ray Client needs: {error}") from error
        voice.say(o.PHASE, phase=f"connect to {order.head}")
        cluster.connect(order)
        voice.say(o.PHASE, phase="start the gateway" if order.join else "find the gateway", makes=bool(order.join))
        asyncio.run(_serve(order, voice, ears))
    except Problem as problem:
        voice.fail(problem)
    os._exit(0)


def _end_with_our_parent() -> None:
    """Its end closes our standard input, too, but a process that was stopped does not hear that. Linux ends even one
    that is stopped; elsewhere it stays until somebody lets it go on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Ears:
    """Hears orders on a thread of its own, so that the end of our control plane is heard even while Ray blocks."""

    def __init__(self) -> None:
        self.hear: Callable[[dict[str, Any]], object] = lambda _: None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            self.hear(json.loads(line))
        os._exit(0)


async def _serve(order: o.Order, voice: Voice, ears: Ears) -> None:
    from ray_multicluster_scheduler.scheduler.connection.connector.session import Serving  # noqa: PLC0415 - imports ray

    serving = Serving(order, voice.say)
    ears.hear = serving.hear
    await serving.run()


if __name__ == "__main__":
    main()
