"""Runs a simulation in a child process with limits of time and memory; request on stdin, result on stdout."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    QueueFullError,
    SchedulerError,
    error_from_problem,
)
from ray_multicluster_scheduler.control_plane.config.loader import config_from
from ray_multicluster_scheduler.control_plane.runtime import wire

MAX_ITEMS = 5_000
TIMEOUT_S = 30.0
_MAX_BYTES = 4 * 2**30
_NICE = 10


class SimulationRunner:
    """One simulation at a time; does not block the loop."""

    def __init__(self) -> None:
        self._busy = False

    async def run(self, request: dict[str, Any], limit_s: float = TIMEOUT_S) -> dict[str, Any]:
        """Run :func:`simulated` in the child. Raises ConfigurationError, QueueFullError while another simulation runs,
        and SchedulerError if it takes too long or ends without an answer."""
        if self._busy:
            raise QueueFullError("Another simulation is running.", next_step="repeat the request when it has ended")
        self._busy = True
        try:
            return await _run_in_child(request, limit_s)
        finally:
            self._busy = False


async def _run_in_child(request: dict[str, Any], limit_s: float) -> dict[str, Any]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate(json.dumps(request).encode())
    except TimeoutError:
        raise SchedulerError(
            f"The simulation did not end within {limit_s:g} s.", next_step="simulate less, or use `rmcs simulate`"
        ) from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        raise SchedulerError(
            f"The simulation ended without an answer ({process.returncode}).",
            next_step="simulate less, or use `rmcs simulate`, which reports the reason",
        ) from None
    if "problem" in answer:
        raise error_from_problem(answer["problem"])
    return answer


def simulated(request: dict[str, Any]) -> dict[str, Any]:
    """In the child: run with ``config``, ``nodes`` by cluster, ``synthetic``, ``seed``. Raises ConfigurationError."""
    from ray_multicluster_scheduler.simulation import Synthetic, load_fleet, simulate  # noqa: PLC0415 - only in the child

    fleet = load_fleet(config_from(request["config"], "the request", Path.cwd(), {}), None, request["nodes"])
    workload = Synthetic.parse(request["synthetic"]).generate(request["seed"], fleet)
    if len(workload) > MAX_ITEMS:
        raise ConfigurationError(
            f"The workload has {len(workload):,} items.",
            next_step=f"simulate at most {MAX_ITEMS:,} in the service, or more with `rmcs simulate`",
        )
    return simulate(fleet, workload, seed=request["seed"]).to_dict()


def _main() -> None:
    os.nice(_NICE)
    with suppress(ValueError, OSError):  # not supported everywhere
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    try:
        answer = simulated(json.load(sys.stdin))
    except SchedulerError as error:
        answer = {"problem": wire.problem_to_wire(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    _main()
