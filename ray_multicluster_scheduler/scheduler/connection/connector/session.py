"""ConnectorSession: finds or creates the gateway's actor by Ray Client, serves its connections, and detects its end."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.experimental.internal_kv import _internal_kv_exists, _internal_kv_put

from ray_multicluster_scheduler.common.model.actor_description import ACTOR_NAMESPACE
from ray_multicluster_scheduler.scheduler.connection.connector import protocol
from ray_multicluster_scheduler.scheduler.connection.connector.diagnosis import (
    Problem,
    from_connecting,
    known_death,
    summary_line,
)
from ray_multicluster_scheduler.scheduler.connection.connector.tunnel import Tunnel

GATEWAY_NAMESPACE = "rmcs-gateways"
"""Separate from the actors of users, which may have any name."""
ON_THE_HEAD = {"node:__internal_head__": 0.001}
"""Like the job of an agent: the loss of another node must not end the agent."""
_CONCURRENT_CALLS = 8
_NOT_FOUND = "Failed to look up actor"
_REOPEN_S, _START_S = 0.2, 60.0
_MAX_WAIT_S = 1.0


class GatewayNotFound(Exception):
    """The cluster answers, and has no such gateway. ``session``: the Ray session of that cluster; ``cause``: the
    recorded cause of death, "" if none."""

    def __init__(self, session: str, cause: str = "") -> None:
        super().__init__(cause)
        self.session, self.cause = session, cause


def connect(config: protocol.ConnectorConfig) -> None:
    """Connect Ray to the cluster. Raises Problem."""
    # Needed to find the actor, too: Ray makes a handle only where the actor's class can be imported.
    env = {
        "py_modules": [config.package],
        "excludes": list(config.excludes),
        "env_vars": {config.inside: config.cluster},
    }
    try:
        address = f"ray://{config.head}"
        ray.init(address, namespace=ACTOR_NAMESPACE, runtime_env=env, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        ours = (ray.__version__, platform.python_version())
        raise from_connecting(config.head, error, ours) from error


class GatewayActor:
    """The gateway's actor, through Ray Client. Its calls are made on one loop."""

    def __init__(self, config: protocol.ConnectorConfig) -> None:
        self._config = config
        self._actor: Any = None

    async def find(self) -> None:
        """Find the actor. Raises GatewayNotFound only if the cluster reports that there is none, otherwise Problem."""
        try:
            self._actor = ray.get_actor(self._config.agent, namespace=GATEWAY_NAMESPACE)
        except ValueError as error:
            if _NOT_FOUND not in str(error):  # a closed channel is a ValueError, too
                raise Problem(protocol.BROKEN, f"the gateway cannot be looked up: {error}") from error
            await self._confirm_gone()
            raise Problem(protocol.BROKEN, "the gateway was not found by its name, but is listed") from error

    def create(self) -> None:
        """Create the actor; its first call shows whether it starts."""
        from ray_multicluster_scheduler.scheduler.connection.gateway.link.host import GatewayHost  # noqa: PLC0415 - not for find

        actor = ray.remote(num_cpus=0, resources=ON_THE_HEAD, max_restarts=0, max_task_retries=0)(GatewayHost)
        self._actor = actor.options(
            name=self._config.agent, namespace=GATEWAY_NAMESPACE, lifetime="detached", max_concurrency=_CONCURRENT_CALLS
        ).remote(self._config.join)

    async def call(self, method: str, *args: Any, patience_s: float | None = None) -> Any:
        """Call a method of the actor. Raises TimeoutError, and Ray's exceptions."""
        future = getattr(self._actor, method).remote(*args).future()
        async with asyncio.timeout(patience_s or self._config.patience_s):
            return await asyncio.wrap_future(future)

    async def death_reason(self, cause: str) -> str | None:
        """For an actor that is gone: the sentence that proves that its process has ended, if any. ``cause`` is the one
        recorded in the cluster. Ray itself answers only processes that have called the actor before."""
        death = known_death(cause)
        if death is not None or self._actor is None:
            return death
        try:
            await self.call("close", "")
        except Exception as error:  # noqa: BLE001 - the error may prove its death
            return known_death(error)
        return None

    def execute(self, command: dict[str, Any]) -> bool | None:
        """Execute a command, on a thread. Raises Ray's exceptions."""
        match command["order"]:
            case protocol.KILL:
                ray.kill(self._actor)
            case protocol.HAS_PACKAGE:
                return bool(_internal_kv_exists(command["uri"].encode()))
            case protocol.PUT_PACKAGE:
                _internal_kv_put(command["uri"].encode(), Path(command["path"]).read_bytes(), overwrite=True)
        return None

    async def _confirm_gone(self) -> None:
        """List the actors: looking up a name fails with the same message when the cluster's store does not answer."""
        lookup = ray.remote(num_cpus=0, max_retries=0)(_lookup_task()).remote(GATEWAY_NAMESPACE, self._config.agent)
        async with asyncio.timeout(2 * self._config.patience_s):
            session, names, cause = await asyncio.wrap_future(lookup.future())
        if self._config.agent not in names:
            raise GatewayNotFound(session, cause)


def _lookup_task() -> Callable[[str, str], tuple[str, list[str], str]]:
    """A nested function is pickled by value, so the cluster need not have our package."""

    def lookup(namespace: str, agent: str) -> tuple[str, list[str], str]:
        """Ray's session, the names in that namespace, and the cause of death of this actor."""
        import ray  # noqa: PLC0415 - in the cluster
        from ray.util import list_named_actors  # noqa: PLC0415 - in the cluster

        session = ray._private.worker.global_worker.node.session_name
        names = [one["name"] for one in list_named_actors(all_namespaces=True) if one["namespace"] == namespace]
        return session, names, "" if agent in names else cause_of_death(agent)

    def cause_of_death(agent: str) -> str:
        """The cause of death in the GCS, read by an internal API of Ray. If that has changed, the cause is unknown, and
        the lease decides."""
        try:
            from ray._private.state import actors  # noqa: PLC0415 - in the cluster

            dead = [one for one in actors().values() if one.get("Name") == agent and one.get("State") == "DEAD"]
            return dead[0]["DeathCause"].actor_died_error_context.error_message if len(dead) == 1 else ""
        except Exception as error:  # noqa: BLE001 - only the cause stays unknown
            print(f"the cause of death of the gateway {agent} is unknown: {type(error).__name__}: {error}")
            return ""

    return lookup


class ConnectorSession:
    """Runs until the gateway is gone or unreachable. Lives on one loop; while Ray blocks it, no heartbeats are sent."""

    def __init__(self, config: protocol.ConnectorConfig, emit: Callable[..., None]) -> None:
        self._config, self._emit = config, emit
        self._gateway = GatewayActor(config)
        self._loop = asyncio.get_running_loop()
        self._beating: asyncio.Task[None] | None = None
        self._death_reason = ""
        """The reason why the agent has ended, if known."""
        self._dead = False
        """The agent or its node has reported its end."""

    async def run(self) -> None:
        """Serve connections until the gateway is gone. Raises Problem."""
        try:
            if self._config.join is not None:
                self._gateway.create()
            else:
                await self._gateway.find()
            while True:
                await self._serve_connection()
                await asyncio.sleep(_REOPEN_S)
                await self._gateway.find()
        except GatewayNotFound as missing:
            if not self._dead:
                death = await self._gateway.death_reason(missing.cause)
                self._death_reason, self._dead = death or self._death_reason, death is not None
            self._emit(protocol.GONE, session=missing.session, why=self._death_reason, dead=self._dead)
        except TimeoutError as error:
            raise Problem(protocol.BROKEN, "the cluster did not answer whether the gateway runs") from error
        except Problem:
            raise
        except Exception as error:
            sentence = f"the gateway cannot be reached: {type(error).__name__}: {summary_line(error)}"
            raise Problem(protocol.BROKEN, sentence) from error
        finally:
            if self._beating is not None:
                self._beating.cancel()

    def handle_command(self, command: dict[str, Any]) -> None:
        """Execute a command on the loop; called on any thread."""
        asyncio.run_coroutine_threadsafe(self._execute(command), self._loop)

    async def _serve_connection(self) -> None:
        tunnel = Tunnel(self._gateway, self._config.listener, min(_MAX_WAIT_S, self._config.patience_s / 3))
        try:
            opened = await tunnel.open(_START_S if self._beating is None else None)
            if self._beating is None:
                self._emit(protocol.READY, session=opened["session"])
                self._beating = asyncio.create_task(self._beat())
            await tunnel.carry()
            ended = await tunnel.close()
            self._death_reason, self._dead = ended or "", ended is not None
        except TimeoutError as error:
            sentence = f"the gateway did not answer within {self._config.patience_s:g} s"
            raise Problem(protocol.BROKEN, sentence) from error
        except ConnectionRefusedError as error:
            raise Problem(protocol.BROKEN, "the control plane's port for agents is closed") from error
        except Exception as error:  # noqa: BLE001 - after any error, the next find() shows whether the actor lives
            death = known_death(error)
            self._death_reason, self._dead = (
                death or self._death_reason or summary_line(error),
                self._dead or death is not None,
            )

    async def _beat(self) -> None:
        while True:
            self._emit(protocol.BEAT)
            await asyncio.sleep(protocol.BEAT_S)

    async def _execute(self, command: dict[str, Any]) -> None:
        answer, problem = None, None
        try:
            answer = await asyncio.to_thread(self._gateway.execute, command)
        except Exception as error:  # noqa: BLE001 - the control plane waits for an answer
            problem = f"{type(error).__name__}: {summary_line(error)}"
        self._emit(protocol.ANSWER, id=command["id"], answer=answer, problem=problem)
