"""What commonly goes wrong on this machine: the home folder, its disk, the port for agents."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from ray_multicluster_scheduler.cli.doctor.findings import Finding, doubtful, well, wrong
from ray_multicluster_scheduler.control_plane.config import FleetConfig
from ray_multicluster_scheduler.control_plane.config.home import rmcs_home

GB = 10**9
SCARCE, TOO_LITTLE = 5 * GB, GB


def home() -> Iterator[Finding]:
    """May we write there, may others read it, and is there room?"""
    folder = rmcs_home()
    try:
        there = folder.exists()
    except OSError as error:
        yield wrong("home", f"{folder} cannot be looked at: {error.strerror}", "set RMCS_HOME to a folder of yours")
        return
    if not there:
        yield _to_be_made(folder)
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not os.access(folder, os.W_OK | os.X_OK):
        yield wrong(
            "home", f"{folder} cannot be written", "make it yours (chown), or set RMCS_HOME to a folder of yours"
        )
    elif mode & 0o077:
        yield doubtful("home", f"{folder} is open to others (mode {mode:o})", f"chmod 700 {folder}")
    else:
        yield well("home", f"{folder} is yours alone")
    yield room("disk", shutil.disk_usage(folder).free, f"for {folder}")


def _to_be_made(folder: Path) -> Finding:
    """A folder that is not there yet is made in the nearest one that is."""
    above = next(one for one in folder.parents if one.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        says = f"{folder} is not there yet, and cannot be made: {above} cannot be written"
        return wrong("home", says, "set RMCS_HOME to a folder of yours")
    return well("home", f"{folder} is not there yet; it is made when it is needed")


def room(about: str, free: float, where: str) -> Finding:
    """Is enough of a disk free?"""
    if free >= SCARCE:
        return well(about, f"{free / GB:.0f} GB are free {where}")
    tell = wrong if free < TOO_LITTLE else doubtful
    mend = "free some space, or shorten keep_payloads_s"
    return tell(about, f"{free / GB:.1f} GB are free {where}", mend, "STORE_FULL")


def agent_port(config: FleetConfig) -> Iterator[Finding]:
    """Could agents dial in? Only asked where no service has the port already."""
    listen, advertise = config.settings.agent_listen, config.settings.agent_advertise
    if listen != "auto":
        host, _, port = listen.rpartition(":")
        try:
            with socket.create_server((host.strip("[]"), int(port)), family=_family(host)):
                yield well("agents", f"{listen} is free for agents to dial in")
        except OSError as error:
            yield wrong(
                "agents",
                f"agent_listen is {listen}, where nothing can listen: {error.strerror}",
                "end what has that port, or choose another",
                "AGENT_CANNOT_DIAL",
            )
    if advertise != "auto":
        host, _, port = advertise.rpartition(":")
        try:
            socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            yield wrong(
                "agents",
                f"agent_advertise is {advertise}, a name that is not known here: {error.strerror}",
                "correct it, or give an address",
                "AGENT_CANNOT_DIAL",
            )


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
