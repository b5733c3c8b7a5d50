"""The gateway as a detached, named actor: how an agent lives in a cluster that it was brought to by Ray Client.

The actor owns whatever the agent runs, so work and results outlive the connector that made it. A connector carries the
bytes of one connection at a time, by :meth:`GatewayHost.push` and :meth:`GatewayHost.pull`; the next connector finds
the actor by its name and opens a new one. The actor ends with its agent: when it is told to, when its lease is over, or
when nobody opens a connection soon after it was made.
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
from ray_multicluster_scheduler.scheduler.connection.gateway.link.agent_identity import session_name
from ray_multicluster_scheduler.scheduler.connection.gateway.link.dial import CannotDial, Join, Rejected
from ray_multicluster_scheduler.scheduler.connection.gateway.link.host_tunnel import Offers, Tunnel

SWITCH_INTERVAL_S = 0.0005
"""Ray's threads and the event loop wait for each other often; at Python's default, up to 5 ms each time."""
_LINGER_S = 1.0
"""For so long the actor can still be asked why it ends."""
_START_PATIENCE_S = 10.0


class GatewayHost:
    """The actor. Its methods are called by a connector, several at a time."""

    def __init__(self, join: dict[str, Any]) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        modules = list(ray.get_runtime_context().runtime_env.get("py_modules", []))
        self._join = Join.from_dict({"own_modules": modules, **join})
        self._lock = threading.Lock()
        self._tunnel: Tunnel | None = None
        self._offers: Offers | None = None
        self._started = threading.Event()
        self._ended: str | None = None
        threading.Thread(target=self._run, name="rmcs-agent", daemon=True).start()

    def open(self, name: str) -> dict[str, Any]:
        """A new connection takes the place of whatever there was."""
        self._started.wait(_START_PATIENCE_S)
        with self._lock:
            before, self._tunnel = self._tunnel, Tunnel(name)
            if before is not None:
                before.close()
            if self._offers is None or self._ended is not None:
                self._tunnel.close()
            else:
                self._offers.put(self._tunnel.theirs)
        return {"session": session_name(), "ended": self._ended}

    def pull(self, name: str, most: int, wait_s: float) -> bytes | None:
        """See :meth:`Tunnel.pull`; None, too, when another connection has taken this one's place."""
        tunnel = self._of(name)
        return None if tunnel is None else tunnel.pull(most, wait_s)

    def push(self, name: str, data: bytes) -> bool:
        """See :meth:`Tunnel.push`."""
        tunnel = self._of(name)
        return tunnel is not None and tunnel.push(data)

    def close(self, name: str) -> str | None:
        """The connection is over. Says why the agent has ended, if it has."""
        tunnel = self._of(name)
        if tunnel is not None:
            tunnel.close()
        return self._ended

    def _of(self, name: str) -> Tunnel | None:
        with self._lock:
            return self._tunnel if self._tunnel is not None and self._tunnel.name == name else None

    def _run(self) -> None:
        why = "it ended"
        try:
            asyncio.run(_serve(self._join, self._use))
        except Closed as reason:
            why = f"it was closed by the control plane: {reason}"
        except CannotDial as error:
            why = f"nobody answered it while its lease held: {error}"
        except Rejected as error:
            why = f"it was turned away: {error}"
        except BaseException as error:  # noqa: BLE001 - whatever it was, an actor without its agent must not stay
            why = f"it failed: {type(error).__name__}: {error}"
        print(f"rmcs agent: {why}", flush=True)
        with self._lock:
            self._ended = why
            if self._tunnel is not None:
                self._tunnel.close()
        threading.Event().wait(_LINGER_S)
        os._exit(0)  # Ray ends what an actor owns that is gone; a polite way out could hang

    def _use(self, offers: Offers | None) -> None:
        with self._lock:
            self._offers = offers
        self._started.set()


async def _serve(join: Join, use: Callable[[Offers | None], None]) -> None:
    """The agent, from its first connection to its end. An offer finds its loop open, or no loop.

    No method of the actor: with a single ``async def`` in a class, Ray runs all its methods on one loop, where the pull
    that waits would stop the push.
    """
    offers = Offers(asyncio.get_running_loop())
    use(offers)
    try:
        await Agent(replace(join, opener=offers.take)).run()
    finally:
        use(None)
