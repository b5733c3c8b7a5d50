"""What commonly goes wrong on this machine: the home folder, its disk, the service, the port for agents."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterator
from typing import Any

from ray_multicluster_scheduler import __version__
from ray_multicluster_scheduler.cli.doctor_findings import Finding, doubtful, well, wrong
from ray_multicluster_scheduler.cli.service import Service, connect, path_of
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.config import FleetConfig
from ray_multicluster_scheduler.control_plane.config.home import rmcs_home

GB = 10**9
SCARCE, TOO_LITTLE = 5 * GB, GB


def home() -> Iterator[Finding]:
    """May we write there, may others read it, and is there room?"""
    folder = rmcs_home()
    if not folder.exists():
        yield well("home", f"{folder} is not there yet; it is made when it is needed")
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
    free = shutil.disk_usage(folder).free
    if free < SCARCE:
        tell = wrong if free < TOO_LITTLE else doubtful
        yield tell(
            "disk",
            f"{free / GB:.1f} GB are free for {folder}",
            "free some space, or shorten keep_payloads_s",
            "STORE_FULL",
        )
    else:
        yield well("disk", f"{free / GB:.0f} GB are free for {folder}")


def service(address: str) -> tuple[list[Finding], dict[str, Any] | None]:
    """Does it answer, does it let us in, can it accept work? Also what it says of itself."""
    try:
        asked = connect(address)
        about: dict[str, Any] = asked.get(path_of("fleet"))
    except SchedulerError as error:
        return [wrong("service", error.message, error.next_step or "", error.code)], None
    found = [well("service", f"{address} answers; you are {about['you']['user']} ({', '.join(about['you']['roles'])})")]
    if about["version"] != __version__:
        says = f"it runs version {about['version']}, and this is {__version__}"
        found.append(doubtful("service", says, "upgrade the older one: `rmcs down --away 600`, install, `rmcs up`"))
    found.append(_ready(asked))
    return found, about


def _ready(asked: Service) -> Finding:
    try:
        asked.get("/readyz")
    except SchedulerError as error:
        return wrong("service", f"it cannot accept work: {error.message}", error.next_step or "", error.code)
    return well("service", "it can accept work")


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
