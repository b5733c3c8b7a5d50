"""Profile which code the time of a task is spent in: py-spy on the contender's process and on its agent."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from bench._contenders import Contender
from bench._parts import Part
from bench._samples import summarise, text_of
from ray_multicluster_scheduler.local_fleet import LocalFleet
from ray_multicluster_scheduler.local_fleet.interpreter import find_ray_python

_GATEWAY = "ray_multicluster_scheduler.scheduler.connection.gateway"
_RATE = 100
_GRACE_S = 30.0


class CannotProfile(Exception):
    """A profile could not be made; the message is the reason."""


def profile(fleet: LocalFleet, cluster: str, contender: Contender, part: Part, seconds: int) -> dict[str, Any]:
    """Run the part repeatedly under py-spy, without measuring. Raises CannotProfile, ContenderFailed."""
    spy = find_ray_python().with_name("py-spy")
    if not spy.exists():
        raise CannotProfile(f"there is no {spy}: `pip install py-spy` into that environment")
    request = part.turns[contender.name]
    for step in part.warm_up:
        contender.ask(step.do, **step.numbers)
    watched = {"our process": contender.pid, "agent": agent_of(contender.pid, fleet.processes(cluster))}
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{number}.raw" for number, name in enumerate(watched)}
        spies = {name: _start(spy, pid, files[name], seconds) for name, pid in watched.items()}
        try:
            while any(spying.poll() is None for spying in spies.values()):
                contender.ask(request.do, **request.numbers)
            return {name: _summary(name, spying, files[name], seconds) for name, spying in spies.items()}
        finally:
            for spying in spies.values():
                spying.kill()
                spying.communicate()


def profile_text(profiles: dict[str, Any]) -> str:
    """The profiles as printed text."""
    return "\n".join(f"{name}:\n{text_of(summary)}" for name, summary in profiles.items())


def agent_of(pid: int, candidates: list[int]) -> int:
    """The process of the agent that dialled back to ``pid``. Raises CannotProfile if there is none."""
    listening = {link.laddr.port for link in _links(pid) if link.status == psutil.CONN_LISTEN}
    for candidate in candidates:
        if _is_gateway(candidate) and any(link.raddr and link.raddr.port in listening for link in _links(candidate)):
            return candidate
    raise CannotProfile(f"none of the cluster's {len(candidates)} processes is an agent connected to process {pid}")


def _is_gateway(pid: int) -> bool:
    with suppress(psutil.Error):
        command = psutil.Process(pid).cmdline()
        return _GATEWAY in command  # as an argument of its own, so not the shell that started it
    return False


def _links(pid: int) -> list[Any]:
    with suppress(psutil.Error):
        return list(psutil.Process(pid).net_connections("tcp"))
    return []


def _start(spy: Path, pid: int, output: Path, seconds: int) -> subprocess.Popen[str]:
    command = [str(spy), "record", "--format=raw", "--threads", "--function", "--full-filenames"]
    command += [f"--duration={seconds}", f"--rate={_RATE}", f"--output={output}", f"--pid={pid}"]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _summary(name: str, spying: subprocess.Popen[str], output: Path, seconds: int) -> dict[str, Any]:
    printed, _ = spying.communicate(timeout=_GRACE_S)
    if spying.returncode != 0 or not output.exists():
        first = next((line.strip() for line in printed.splitlines() if line.strip()), "no output")
        raise CannotProfile(f"py-spy could not look into {name} (ptrace may not be permitted here): {first}")
    return summarise(output.read_text(encoding="utf-8"), ticks=seconds * _RATE)
