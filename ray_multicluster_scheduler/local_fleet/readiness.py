"""When a cluster may be used: dashboard, GCS, node, Jobs API and Ray Client all answer."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request

from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK, Ports

_TIMEOUT_S = 3.0
_STARTED = "Ray runtime started"
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url: str, token: str, timeout_s: float = _TIMEOUT_S) -> bytes:
    """GET with the cluster's token, never through a proxy. Raises OSError (an HTTP error is one)."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with _direct.open(request, timeout=timeout_s) as answer:
        body: bytes = answer.read()
        return body


def bare_not_ready(ports: Ports, log: str) -> str | None:
    """The same of a cluster without a dashboard, which cannot be asked: ``log`` is what ``ray start`` has said."""
    if _STARTED not in log:
        return "ray start has not finished yet"
    return None if listening(ports.client) else "the Ray Client server does not listen yet"


def not_ready(ports: Ports, token: str) -> str | None:
    """What is still missing, in words; None when everything answers."""
    dashboard = f"http://{LOOPBACK}:{ports.dashboard}"
    for path, what in (("/api/version", "dashboard"), ("/api/gcs_healthz", "GCS"), ("/api/jobs/", "Jobs API")):
        try:
            fetch(dashboard + path, token)
        except OSError as error:
            return f"the {what} does not answer yet ({error})"
    try:
        if not _node_alive(fetch(dashboard + "/api/v0/nodes", token)):
            return "the node has not joined yet"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"the list of nodes cannot be read yet ({error})"
    for port, what in ((ports.client, "Ray Client server"), (ports.agent_http, "node's agent")):
        if not listening(port):
            return f"the {what} does not listen yet"
    return None


def _node_alive(body: bytes) -> bool:
    nodes = json.loads(body)["data"]["result"]["result"]
    return any(node["state"] == "ALIVE" for node in nodes)


def listening(port: int) -> bool:
    """Whether a loopback port accepts connections."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True
