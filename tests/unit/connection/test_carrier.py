"""Which way leads to a cluster, and why."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.scheduler.connection.carrier import Choices, choose
from ray_multicluster_scheduler.scheduler.connection.gateway import messages as m
from ray_multicluster_scheduler.scheduler.connection.link_memory import RememberedAgent
from ray_multicluster_scheduler.scheduler.connection.link_problem import LinkProblem, from_agent_log

BOTH = {"dashboard": "http://h:8265", "head_address": "h:10001"}
CANNOT = from_agent_log("a", "python", "10.0.0.1:4000", "FAILED", f"{m.DIAL_FAILED} 10.0.0.1:4000 (no answer)")


def config(**keys: Any) -> ClusterConfig:
    return ClusterConfig(**{"name": "a", **keys})


@pytest.mark.parametrize(
    ("keys", "cannot_dial", "carrier", "says"),
    [
        ({**BOTH}, None, "agent", "it has a dashboard"),
        ({**BOTH, "carrier": "agent"}, "closed", "agent", "its carrier is agent"),
        ({**BOTH, "carrier": "ray_client"}, None, "ray_client", "its carrier is ray_client"),
        ({"head_address": "h:10001"}, None, "ray_client", "it has no dashboard"),
        ({**BOTH}, "10.0.0.1:1", "ray_client", "its agent cannot dial back to 10.0.0.1:1"),
        ({"dashboard": "http://h:8265"}, "a firewall", "agent", "it has a dashboard"),
    ],
)
def test_which_way_and_why(keys: dict[str, Any], cannot_dial: str | None, carrier: str, says: str) -> None:
    choice = choose(config(**keys), cannot_dial)
    assert choice.carrier == carrier
    assert says in choice.why


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"carrier": "ray_client", "dashboard": "http://h:8265"}, "needs head_address"),
        ({"carrier": "agent", "head_address": "h:10001"}, "needs dashboard"),
    ],
)
def test_a_carrier_that_lacks_its_address_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        config(**keys)


def test_an_agent_that_could_not_dial_is_remembered_until_the_configuration_changes() -> None:
    choices, both = Choices(), config(**BOTH)
    assert CANNOT.code == "AGENT_CANNOT_DIAL"
    assert choices.other_way(both, CANNOT)
    assert choices.choose(both).carrier == "ray_client"
    assert "10.0.0.1:4000" in choices.choose(both).why
    assert choices.choose(config(**BOTH, weight=2)).carrier == "agent", "somebody may have mended it"


@pytest.mark.parametrize("keys", [{**BOTH, "carrier": "agent"}, {"dashboard": "http://h:8265"}])
def test_there_is_no_other_way_where_it_is_not_wanted_or_has_no_address(keys: dict[str, Any]) -> None:
    assert not Choices().other_way(config(**keys), CANNOT)


def test_other_problems_are_no_reason_to_go_another_way() -> None:
    choices, both = Choices(), config(**BOTH)
    slow = LinkProblem("it took long", code="AGENT_SLOW", permanent=False, cluster="a")
    assert not choices.other_way(both, slow)
    assert choices.choose(both).carrier == "agent"


def test_what_an_older_process_wrote_of_an_agent_came_by_a_job() -> None:
    old = RememberedAgent("a", "agent-1", "s", "127.0.0.1", 1).to_dict()
    del old["carrier"], old["session"]
    read = RememberedAgent.from_dict(old)
    assert (read.carrier, read.session) == ("agent", "")
