"""GatewayHost: a detached, named Ray actor that runs an agent, in a cluster that is reached by Ray Client.

Created by a connector. The actor owns the agent's calls, so calls and results outlive the connector. A connector copies
the bytes of one connection at a time, with :meth:`GatewayHost.push` and :meth:`GatewayHost.pull`; the next connector
finds the actor by its name and opens a new connection. The actor ends with its agent: when the control plane closes it,
when its lease expires, or when no connection is opened soon after its start.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ray

from ray_multicluster_scheduler.scheduler.connection.gateway.agent import Agent, Closed
from ray_multicluster_scheduler.scheduler.connection.gateway.cluster_probe import session_name
from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import CannotDial, Join, Rejected
from ray_multicluster_scheduler.scheduler.connection.gateway.link.host_tunnel import ActorTunnel, PendingConnection

SWITCH_INTERVAL_S = 0.0005
"""See :mod:`..__main__`."""
_LINGER_S = 1.0
"""For this time the actor still answers why it ends."""
_START_TIMEOUT_S = 10.0


class GatewayHost:
    """The actor. A connector calls its methods, several at a time."""

    def __init__(self, join: dict[str, Any]) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        modules = list(ray.get_runtime_context().runtime_env.get("py_modules", []))
        self._join = Join.from_dict({"own_modules": modules, **join})
        self._lock = threading.Lock()
        self._tunnel: ActorTunnel | None = None
        self._pending: PendingConnection | None = None
        self._started = threading.Event()
        self._ended: str | None = None
        threading.Thread(target=self._run, name="rmcs-agent", daemon=True).start()

    def open(self, name: str) -> dict[str, Any]:
        """Open a connection, which replaces the one before."""
        self._started.wait(_START_TIMEOUT_S)
        with self._lock:
            before, self._tunnel = self._tunnel, ActorTunnel(name)
            if before is not None:
                before.close()
            if self._pending is None or self._ended is not None:
                self._tunnel.close()
            else:
                self._pending.put(self._tunnel.theirs)
        return {"session": session_name(), "ended": self._ended}

    def pull(self, name: str, most: int, wait_s: float) -> bytes | None:
        """See :meth:`ActorTunnel.pull`; None also if another connection has replaced this one."""
        tunnel = self._tunnel_of(name)
        return None if tunnel is None else tunnel.pull(most, wait_s)

    def push(self, name: str, data: bytes) -> bool:
        """See :meth:`ActorTunnel.push`."""
        tunnel = self._tunnel_of(name)
        return tunnel is not None and tunnel.push(data)

    def close(self, name: str) -> str | None:
        """Close the connection; returns why the agent has ended, if it has."""
        tunnel = self._tunnel_of(name)
        if tunnel is not None:
            tunnel.close()
        return self._ended

    def _tunnel_of(self, name: str) -> ActorTunnel | None:
        with self._lock:
            return self._tunnel if self._tunnel is not None and self._tunnel.name == name else None

    def _run(self) -> None:
        why = "it ended"
        try:
            asyncio.run(_serve(self._join, self._use))
        except Closed as reason:
            why = f"it was closed by the control plane: {reason}"
        except CannotDial as error:
            why = f"no control plane answered it while its lease lasted: {error}"
        except Rejected as error:
            why = f"it was rejected: {error}"
        except BaseException as error:  # noqa: BLE001 - an actor without its agent must end
            why = f"it failed: {type(error).__name__}: {error}"
        print(f"rmcs agent: {why}", flush=True)
        with self._lock:
            self._ended = why
            if self._tunnel is not None:
                self._tunnel.close()
        threading.Event().wait(_LINGER_S)
        os._exit(0)  # Ray ends the tasks and actors that it owns; an orderly shutdown could hang

    def _use(self, pending: PendingConnection | None) -> None:
        with self._lock:
            self._pending = pending
        self._started.set()


async def _serve(join: Join, use: Callable[[PendingConnection | None], None]) -> None:
    """Run the agent from its first connection to its end.

    Not a method of the actor: with a single ``async def`` in a class, Ray runs all its methods on one loop, where a
    pull that waits would block a push.
    """
    pending = PendingConnection(asyncio.get_running_loop())
    use(pending)
    try:
        await Agent(replace(join, opener=pending.take)).run()
    finally:
        use(None)
