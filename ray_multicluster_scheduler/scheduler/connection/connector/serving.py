"""A connector at work: one connection of the gateway's after another, and orders beside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ray_multicluster_scheduler.scheduler.connection.connector import order as o
from ray_multicluster_scheduler.scheduler.connection.connector.checks import Problem, in_one_line
from ray_multicluster_scheduler.scheduler.connection.connector.cluster import Gateway, Gone
from ray_multicluster_scheduler.scheduler.connection.connector.deaths import known_death
from ray_multicluster_scheduler.scheduler.connection.connector.tunnel import Tunnel

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
