"""`python -m ray_multicluster_scheduler.scheduler.connection.connector`: started by a control plane only."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from ray_multicluster_scheduler.scheduler.connection.connector import order as o
from ray_multicluster_scheduler.scheduler.connection.connector.checks import Problem, check_answer, check_port

_REOPEN_S, _START_S = 0.2, 60.0


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
            from ray_multicluster_scheduler.scheduler.connection.connector import cluster  # noqa: PLC0415 - imports ray
        except ImportError as error:
            raise Problem(o.NO_RAY, f"{sys.executable} cannot import what Ray Client needs: {error}") from error
        voice.say(o.PHASE, phase=f"connect to {order.head}")
        cluster.connect(order)
        voice.say(o.PHASE, phase="start the gateway" if order.join else "find the gateway")
        asyncio.run(_serve(order, voice, ears, cluster.Gateway(order), cluster.Gone))
    except Problem as problem:
        voice.fail(problem)
    os._exit(0)


class Ears:
    """Hears orders on a thread of its own, so that the end of our control plane is heard even while Ray blocks."""

    def __init__(self) -> None:
        self.hear: Callable[[str], object] = lambda _: None
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            self.hear(json.loads(line)["order"])
        os._exit(0)


async def _serve(order: o.Order, voice: Voice, ears: Ears, gateway: Any, gone: type[Exception]) -> None:
    """One connection after another, until the gateway is gone. Raises Problem."""
    from ray_multicluster_scheduler.scheduler.connection.connector.tunnel import Tunnel  # noqa: PLC0415 - beside the others

    loop = asyncio.get_running_loop()

    def obey(what: str) -> None:
        if what == o.KILL:
            gateway.kill()
            voice.say(o.KILLED)

    why, first = "", True
    beating: asyncio.Task[None] | None = None
    try:
        if order.join is not None:
            gateway.make()
        else:
            await gateway.find()
        ears.hear = lambda what: loop.call_soon_threadsafe(obey, what)
        while True:
            tunnel = Tunnel(gateway, order.listener, min(1.0, order.patience_s / 3))
            try:
                opened = await tunnel.open(_START_S if first else None)
                if first:
                    voice.say(o.READY, session=opened["session"])
                    beating, first = asyncio.create_task(_beat(voice)), False
                await tunnel.carry()
                why = await tunnel.close() or ""
            except TimeoutError as error:
                raise Problem(o.BROKEN, f"the gateway did not answer within {order.patience_s:g} s") from error
            except ConnectionRefusedError as error:
                raise Problem(o.BROKEN, "the control plane's port for agents is closed") from error
            except Problem:
                raise
            except Exception as error:  # noqa: BLE001 - whatever Ray raises, whether the actor lives decides
                why = why or _first_line(error)
            await asyncio.sleep(_REOPEN_S)
            await gateway.find()
    except gone as error:
        voice.say(o.GONE, session=getattr(error, "session", ""), why=why)
    except TimeoutError as error:
        raise Problem(o.BROKEN, "the cluster did not answer whether the gateway is there") from error
    except Problem:
        raise
    except Exception as error:
        raise Problem(
            o.BROKEN, f"the gateway cannot be reached: {type(error).__name__}: {_first_line(error)}"
        ) from error
    finally:
        if beating is not None:
            beating.cancel()


async def _beat(voice: Voice) -> None:
    while True:
        voice.say(o.BEAT)
        await asyncio.sleep(o.BEAT_S)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


if __name__ == "__main__":
    main()
