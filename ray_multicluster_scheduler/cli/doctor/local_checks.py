"""Checks of this machine: the home folder, its disk, the port for agents."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterator

from ray_multicluster_scheduler.cli.doctor.findings import Finding, ok, problem, warning
from ray_multicluster_scheduler.control_plane.config import FleetConfig
from ray_multicluster_scheduler.control_plane.config.home import rmcs_home

GB = 10**9
LOW_SPACE, CRITICAL_SPACE = 5 * GB, GB


def home() -> Iterator[Finding]:
    """Is it writable, private, and is there enough space?"""
    folder = rmcs_home()
    try:
        exists = folder.exists()
    except OSError as error:
        yield problem("home", f"{folder} cannot be read: {error.strerror}", "set RMCS_HOME to a folder of yours")
        return
    if not exists:
        above = next(one for one in folder.parents if one.exists())
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            yield ok("home", f"{folder} does not exist; it is created when it is needed")
        else:
            says = f"{folder} does not exist, and cannot be created: {above} cannot be written"
            yield problem("home", says, "set RMCS_HOME to a folder of yours")
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not os.access(folder, os.W_OK | os.X_OK):
        yield problem(
            "home", f"{folder} cannot be written", "make it yours (chown), or set RMCS_HOME to a folder of yours"
        )
    elif mode & 0o077:
        yield warning("home", f"{folder} is open to others (mode {mode:o})", f"chmod 700 {folder}")
    else:
        yield ok("home", f"{folder} is yours alone")
    yield disk_space("disk", shutil.disk_usage(folder).free, f"for {folder}")


def disk_space(about: str, free: float, where: str) -> Finding:
    """Is enough of a disk free?"""
    if free >= LOW_SPACE:
        return ok(about, f"{free / GB:.0f} GB are free {where}")
    report = problem if free < CRITICAL_SPACE else warning
    fix = "free some space, or shorten keep_payloads_s"
    return report(about, f"{free / GB:.1f} GB are free {where}", fix, "STORE_FULL")


def agent_port(config: FleetConfig) -> Iterator[Finding]:
    """Can agents dial in? Only checked if no service uses the port."""
    listen, advertise = config.settings.agent_listen, config.settings.agent_advertise
    if listen != "auto":
        host, _, port = listen.rpartition(":")
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.create_server((host.strip("[]"), int(port)), family=family):
                yield ok("agents", f"{listen} is free for agents to dial in")
        except OSError as error:
            says = f"agent_listen is {listen}, which cannot be used: {error.strerror}"
            fix = "end the process that uses the port, or choose another"
            yield problem("agents", says, fix, "AGENT_CANNOT_DIAL")
    if advertise != "auto":
        host, _, port = advertise.rpartition(":")
        try:
            socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            says = f"agent_advertise is {advertise}, a name that is not known here: {error.strerror}"
            yield problem("agents", says, "correct it, or give an address", "AGENT_CANNOT_DIAL")
