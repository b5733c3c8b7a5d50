"""Gangs for tests: calls for a bare link, functions that wait for each other, and remaining placement groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import Call, MemberCall, NewGang


def part(function: Callable[..., Any], *args: Any, cpus: float = 1.0, **values: Any) -> MemberCall:
    """A member, ready to be sent."""
    pickled = pickling.dumps(function)
    return MemberCall(
        name=getattr(function, "__name__", "member"),
        function_digest=str(hash(pickled)),
        function=pickled,
        arguments=pickling.dumps((args, {})),
        resources={"CPU": cpus},
        **values,
    )


def gang(gang_id: str, *members: MemberCall, of: Any = "task", strategy: str = "PACK", **values: Any) -> Call:
    """A call that is a gang, ready to be sent."""
    return Call(
        task_id=gang_id,
        attempt=1,
        fence=1,
        name=gang_id,
        function_digest="",
        function=b"",
        arguments=b"",
        resources={"CPU": sum(member.resources["CPU"] for member in members)},
        gang=NewGang(strategy, of, members),
        **values,
    )


def meeting() -> Any:
    """A by-value function that waits until ``of`` members have started."""

    def run(folder: str, name: str, of: int) -> str:
        import pathlib
        import time

        (pathlib.Path(folder) / name).touch()
        deadline = time.monotonic() + 30
        while len(list(pathlib.Path(folder).iterdir())) < of:
            if time.monotonic() > deadline:
                raise TimeoutError("the others did not start")
            time.sleep(0.02)
        return name

    return run


def noting_its_end() -> Any:
    """A by-value function that runs long, and writes a file when it is interrupted."""

    def run(folder: str, name: str) -> str:
        import pathlib
        import time

        there = pathlib.Path(folder)
        (there / f"{name}-began").touch()
        try:
            for _ in range(2400):  # in small steps: an interrupt waits for the end of each
                time.sleep(0.05)
        except KeyboardInterrupt:
            (there / f"{name}-ended").touch()
            raise
        return name

    return run


def living_groups() -> Any:
    """A by-value function that returns the names of the remaining placement groups of its cluster."""

    def run() -> list[str]:
        from ray.util import placement_group_table

        return [group["name"] for group in placement_group_table().values() if group["state"] != "REMOVED"]

    return run
