"""Claim a block of free ports for one cluster, so that two fleets never pick the same ones."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from contextlib import ExitStack
from typing import NamedTuple

from ray_multicluster_scheduler.common.exception import ConfigurationError

LOOPBACK = "127.0.0.1"
_FIRST, _LAST, _SIZE = 24_000, 32_000, 16
"""Above the range of Ray's client servers (23000–23999), below the ephemeral ports of Linux and macOS."""


class Ports(NamedTuple):
    """The ports a Ray head listens on, one each."""

    gcs: int
    client: int
    dashboard: int
    agent_http: int
    agent_grpc: int
    metrics: int
    runtime_env: int
    node_manager: int
    object_manager: int
    autoscaler_metrics: int
    dashboard_metrics: int


class PortBlock:
    """A run of free ports. Its first one stays bound while the block is held, which is what claims the rest."""

    def __init__(self, guard: socket.socket, ports: Ports) -> None:
        self._guard = guard
        self.ports = ports

    @property
    def base(self) -> int:
        return self.ports[0] - 1

    def release(self) -> None:
        self._guard.close()


def claim(bases: Iterable[int] | None = None) -> PortBlock:
    """Claim the first block in which every port is free. Raises ConfigurationError if there is none."""
    if bases is None:
        bases = random.sample(range(_FIRST, _LAST, _SIZE), (_LAST - _FIRST) // _SIZE)  # nosec B311 # any will do
    for base in bases:
        block = _try_claim(base)
        if block is not None:
            return block
    raise ConfigurationError(
        f"No {len(Ports._fields)} free ports next to each other on {LOOPBACK}.",
        next_step=f"free some ports between {_FIRST} and {_LAST}.",
    )


def _try_claim(base: int) -> PortBlock | None:
    ports = Ports(*range(base + 1, base + 1 + len(Ports._fields)))
    with ExitStack() as trial:
        guard = _bound(base)
        if guard is None:
            return None
        for port in ports:
            taken = _bound(port)
            if taken is None:
                guard.close()
                return None
            trial.callback(taken.close)
    return PortBlock(guard, ports)


def _bound(port: int) -> socket.socket | None:
    """A socket on that port; without SO_REUSEADDR, so that one in TIME_WAIT counts as taken."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind((LOOPBACK, port))
    except OSError:
        sock.close()
        return None
    return sock
