"""Resolution of agent_listen and agent_advertise."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError
from ray_multicluster_scheduler.scheduler.connection.agents.agent_address import (
    AgentAddress,
    agent_address,
    is_loopback,
)

LOCAL = "http://127.0.0.1:8265"


@pytest.mark.parametrize(
    ("listen", "advertise", "expected", "loopback"),
    [
        ("auto", "auto", AgentAddress("127.0.0.1", 0, "127.0.0.1", None), True),
        ("127.0.0.1:7000", "auto", AgentAddress("127.0.0.1", 7000, "127.0.0.1", None), True),
        ("localhost", "auto", AgentAddress("localhost", 0, "localhost", None), True),
        ("10.1.2.3:7000", "auto", AgentAddress("10.1.2.3", 7000, "10.1.2.3", None), False),
        ("0.0.0.0:7000", "auto", AgentAddress("0.0.0.0", 7000, "127.0.0.1", None), False),
        ("[::1]:7000", "auto", AgentAddress("::1", 7000, "::1", None), True),
        ("0.0.0.0:7000", "gate.example:443", AgentAddress("0.0.0.0", 7000, "gate.example", 443), False),
        ("auto", "gate.example", AgentAddress("127.0.0.1", 0, "gate.example", None), True),
        ("auto", "[2001:db8::1]:9", AgentAddress("127.0.0.1", 0, "2001:db8::1", 9), True),
    ],
)
def test_listen_and_advertise(listen: str, advertise: str, expected: AgentAddress, loopback: bool) -> None:
    found = agent_address(listen, advertise, LOCAL, "a")
    assert found == expected
    assert found.loopback is loopback


@pytest.mark.parametrize("text", ["", ":7000", "host:", "host:port", "host:70000", "host:-1", "::1", "fe80::1:7000"])
@pytest.mark.parametrize("key", ["agent_listen", "agent_advertise"])
def test_the_error_for_an_invalid_address_names_the_key(key: str, text: str) -> None:
    listen, advertise = (text, "auto") if key == "agent_listen" else ("auto", text)
    with pytest.raises(ConfigurationError, match=key) as caught:
        agent_address(listen, advertise, LOCAL, "a")
    assert "host:port" in str(caught.value.next_step)


def test_the_error_for_an_unresolvable_dashboard_names_the_cluster() -> None:
    with pytest.raises(ClusterConnectionError, match="'lab'") as caught:
        agent_address("auto", "auto", "http://no-such-host.invalid:8265", "lab")
    assert caught.value.cluster == "lab"
    assert "dashboard" in str(caught.value.next_step)


@pytest.mark.parametrize(
    ("host", "expected"), [("127.9.9.9", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("x", False)]
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
