"""AgentAddress: the address where we listen for the agents of a cluster, and the one that they dial."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError

AUTO = "auto"
_ANY = ("0.0.0.0", "::")  # nosec B104 # compared with, not bound to


@dataclass(frozen=True, slots=True)
class AgentAddress:
    """Listen on ``host:port`` (0: any free port); agents dial ``dial_host:dial_port`` (None: the same port)."""

    host: str
    port: int
    dial_host: str
    dial_port: int | None

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def tls(self) -> bool:
        """Whether connections to this address must be encrypted."""
        return self != NO_LISTENER and not self.loopback


NO_LISTENER = AgentAddress("", 0, "", 0)
"""For agents that we dial: no port is open for them."""


def agent_address(listen: str, advertise: str, dashboard: str, cluster: str) -> AgentAddress:
    """Resolve `agent_listen` and `agent_advertise` for one cluster. Raises ConfigurationError."""
    host, port = ("", 0) if listen == AUTO else _split(listen, "agent_listen")
    local = _local_address_towards(dashboard, cluster) if not host or host in _ANY else host
    host = host or local
    if advertise == AUTO:
        return AgentAddress(host, port, local, None)
    dial_host, dial_port = _split(advertise, "agent_advertise")
    return AgentAddress(host, port, dial_host, dial_port or None)


def is_loopback(host: str) -> bool:
    """Whether traffic to this host stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _split(text: str, key: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text else (text, "", "0")
    bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))  # its port is ambiguous
    if not host or bare_ipv6 or not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"{key} is {text!r}.", next_step=f"give {key} as host:port, or auto")
    return host.strip("[]"), int(port)


def _local_address_towards(dashboard: str, cluster: str) -> str:
    """The local address that reaches this cluster, by the routing table; sends nothing."""
    parts = urlsplit(dashboard)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ClusterConnectionError(
            f"cluster {cluster!r}: no route to its dashboard {dashboard}: {error.strerror or error}.",
            cluster=cluster,
            next_step="check the key dashboard, and the name service",
        ) from error
