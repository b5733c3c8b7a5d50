"""One Ray Client connection: finds or creates the gateway's actor, serves its connections, and detects its end."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.experimental.internal_kv import _internal_kv_exists, _internal_kv_put

from ray_multicluster_scheduler.common.model.actor_description import ACTOR_NAMESPACE
from ray_multicluster_scheduler.scheduler.connection.connector import protocol as o
from ray_multicluster_scheduler.scheduler.connection.connector.diagnosis import (
    Problem,
    from_connecting,
    in_one_line,
    known_death,
)
from ray_multicluster_scheduler.scheduler.connection.connector.tunnel import Tunnel

GATEWAY_NAMESPACE = "rmcs-gateways"
"""Apart from the actors of users, which are called as they please."""
_CONCURRENT_CALLS = 8
_NOT_FOUND = "Failed to look up actor"
ON_THE_HEAD = {"node:__internal_head__": 0.001}
"""As an agent that is a job is: the loss of another node must not take along what runs on the rest of them."""


class Gone(Exception):
    """The cluster answers, and has no such gateway. ``session``: that of the cluster which says so; ``cause``: what it
    keeps of how the gateway died, "" if nothing."""

    def __init__(self, session: str, cause: str = "") -> None:
        super().__init__(cause)
        self.session, self.cause = session, cause


def connect(order: o.Order) -> None:
    """Raises Problem."""
    # Also to find it: Ray makes a handle of an actor only where its class can be imported.
    env = {"py_modules": [order.package], "excludes": list(order.excludes), "env_vars": {order.inside: order.cluster}}
    try:
        ray.init(
            f"ray://{order.head}",
            namespace=ACTOR_NAMESPACE,
            runtime_env=env,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except Exception as error:
        ours = (ray.__version__, platform.python_version())
        raise from_connecting(order.head, error, ours) from error


class Gateway:
    """The actor, as it is seen through Ray Client. Its calls are made on one loop."""

    def __init__(self, order: o.Order) -> None:
        self._order = order
        self._actor: Any = None

    async def find(self) -> None:
        """Raises Gone only when the cluster itself says that there is no such actor; Problem if it cannot be asked."""
        try:
            self._actor = ray.get_actor(self._order.agent, namespace=GATEWAY_NAMESPACE)
        except ValueError as error:
            if _NOT_FOUND not in str(error):  # a closed channel is a ValueError, too
                raise Problem(o.BROKEN, f"the gateway cannot be looked for: {error}") from error
            await self._confirm_gone()
            raise Problem(o.BROKEN, "the gateway was not found by its name, but is listed") from error

    def make(self) -> None:
        """The actor is made; whether it starts, its first call tells."""
        from ray_multicluster_scheduler.scheduler.connection.gateway.link.host import GatewayHost  # noqa: PLC0415 - not for find

        actor = ray.remote(num_cpus=0, resources=ON_THE_HEAD, max_restarts=0, max_task_retries=0)(GatewayHost)
        self._actor = actor.options(
            name=self._order.agent,
            namespace=GATEWAY_NAMESPACE,
            lifetime="detached",
            max_concurrency=_CONCURRENT_CALLS,
        ).remote(self._order.join)

    async def call(self, method: str, *args: Any, patience_s: float | None = None) -> Any:
        """Raises TimeoutError when it is not answered, and whatever Ray raises."""
        future = getattr(self._actor, method).remote(*args).future()
        async with asyncio.timeout(patience_s or self._order.patience_s):
            return await asyncio.wrap_future(future)

    async def how_it_died(self, cause: str) -> str | None:
        """Of one that is gone: the sentence by which it is known that its process has ended; None if it is not known.
        ``cause`` is what the cluster keeps of it. Only who has called it before can ask Ray itself."""
        death = known_death(cause)
        if death is not None or self._actor is None:
            return death
        try:
            await self.call("close", "")
        except Exception as error:  # noqa: BLE001 - what does not tell of its death leaves that unknown
            return known_death(error)
        return None

    def obey(self, what: dict[str, Any]) -> bool | None:
        """Carry out an order; runs on a thread of its own. Raises whatever Ray raises."""
        match what["order"]:
            case o.KILL:
                ray.kill(self._actor)
            case o.HAS_PACKAGE:
                return bool(_internal_kv_exists(what["uri"].encode()))
            case o.PUT_PACKAGE:
                _internal_kv_put(what["uri"].encode(), Path(what["path"]).read_bytes(), overwrite=True)
        return None

    async def _confirm_gone(self) -> None:
        """To look up a name fails in the same words when the cluster's store does not answer. A list does not."""
        look = ray.remote(num_cpus=0, max_retries=0)(_look_task()).remote(GATEWAY_NAMESPACE, self._order.agent)
        async with asyncio.timeout(2 * self._order.patience_s):
            session, names, cause = await asyncio.wrap_future(look.future())
        if self._order.agent not in names:
            raise Gone(session, cause)


def _look_task() -> Callable[[str, str], tuple[str, list[str], str]]:
    """A function inside a function is pickled by value: our package need not be where it runs."""

    def look(namespace: str, agent: str) -> tuple[str, list[str], str]:
        """The session, who is in that namespace, and what is kept of how this one died."""
        import ray  # noqa: PLC0415 - over there
        from ray.util import list_named_actors  # noqa: PLC0415 - over there

        session = ray._private.worker.global_worker.node.session_name
        names = [one["name"] for one in list_named_actors(all_namespaces=True) if one["namespace"] == namespace]
        return session, names, "" if agent in names else cause_of_death(agent)

    def cause_of_death(agent: str) -> str:
        """The GCS keeps those that are dead. How it is asked is Ray's own matter, and may change: then it is not known,
        and the lease decides."""
        try:
            from ray._private.state import actors  # noqa: PLC0415 - over there

            dead = [one for one in actors().values() if one.get("Name") == agent and one.get("State") == "DEAD"]
            return dead[0]["DeathCause"].actor_died_error_context.error_message if len(dead) == 1 else ""
        except Exception as error:  # noqa: BLE001 - that it is gone is known all the same
            print(f"how the gateway {agent} died is not told: {type(error).__name__}: {error}")
            return ""

    return look


_REOPEN_S, _START_S = 0.2, 60.0
_LONGEST_WAIT_S = 1.0


class Serving:
    """Until the gateway is gone, or cannot be reached. Lives on one loop; when Ray blocks that, our beats stop."""

    def __init__(self, order: o.Order, say: Callable[..., None]) -> None:
        self._order, self._say = order, say
        self._gateway = Gateway(order)
        self._loop = asyncio.get_running_loop()
        self._beating: asyncio.Task[None] | None = None
        self._why = ""
        """What is known of why the agent has ended."""
        self._dead = False
        """It said so itself, or its node did."""

    async def run(self) -> None:
        """Raises Problem."""
        try:
            if self._order.join is not None:
                self._gateway.make()
            else:
                await self._gateway.find()
            while True:
                await self._one_connection()
                await asyncio.sleep(_REOPEN_S)
                await self._gateway.find()
        except Gone as gone:
            if not self._dead:
                death = await self._gateway.how_it_died(gone.cause)
                self._why, self._dead = death or self._why, death is not None
            self._say(o.GONE, session=gone.session, why=self._why, dead=self._dead)
        except TimeoutError as error:
            raise Problem(o.BROKEN, "the cluster did not answer whether the gateway is there") from error
        except Problem:
            raise
        except Exception as error:
            sentence = f"the gateway cannot be reached: {type(error).__name__}: {in_one_line(error)}"
            raise Problem(o.BROKEN, sentence) from error
        finally:
            if self._beating is not None:
                self._beating.cancel()

    def hear(self, what: dict[str, Any]) -> None:
        """An order, from any thread."""
        asyncio.run_coroutine_threadsafe(self._obey(what), self._loop)

    async def _one_connection(self) -> None:
        tunnel = Tunnel(self._gateway, self._order.listener, min(_LONGEST_WAIT_S, self._order.patience_s / 3))
        try:
            opened = await tunnel.open(_START_S if self._beating is None else None)
            if self._beating is None:
                self._say(o.READY, session=opened["session"])
                self._beating = asyncio.create_task(self._beat())
            await tunnel.carry()
            ended = await tunnel.close()
            self._why, self._dead = ended or "", ended is not None
        except TimeoutError as error:
            raise Problem(o.BROKEN, f"the gateway did not answer within {self._order.patience_s:g} s") from error
        except ConnectionRefusedError as error:
            raise Problem(o.BROKEN, "the control plane's port for agents is closed") from error
        except Exception as error:  # noqa: BLE001 - whatever Ray raises, whether the actor lives decides
            death = known_death(error)
            self._why, self._dead = death or self._why or in_one_line(error), self._dead or death is not None

    async def _beat(self) -> None:
        while True:
            self._say(o.BEAT)
            await asyncio.sleep(o.BEAT_S)

    async def _obey(self, what: dict[str, Any]) -> None:
        answer, problem = None, None
        try:
            answer = await asyncio.to_thread(self._gateway.obey, what)
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for an answer
            problem = f"{type(error).__name__}: {in_one_line(error)}"
        self._say(o.ANSWER, id=what["id"], answer=answer, problem=problem)
