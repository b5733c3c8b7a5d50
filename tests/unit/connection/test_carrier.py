"""Selection of a cluster's carrier, and the reason for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.agents.carrier import (
    CARRIER_RETRY_S,
    CarrierSelector,
    carrier_options,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import LinkProblem, from_agent_log
from tests.support.links import FakeClock

BOTH = {"dashboard": "http://h:8265", "head_address": "h:10001"}
CANNOT = from_agent_log("a", "python", "10.0.0.1:4000", "FAILED", f"{m.DIAL_FAILED} 10.0.0.1:4000 (no answer)")

UNREACHABLE = LinkProblem("no route", code="AGENT_UNREACHABLE", permanent=True, cluster="a")


def config(**keys: Any) -> ClusterConfig:
    return ClusterConfig(**{"name": "a", **keys})


@pytest.mark.parametrize(
    ("keys", "options", "says"),
    [
        ({**BOTH}, ["agent", "dial_in", "ray_client"], "it has a dashboard"),
        ({**BOTH, "carrier": "agent"}, ["agent"], "its carrier is agent"),
        ({**BOTH, "carrier": "dial_in"}, ["dial_in"], "its carrier is dial_in"),
        ({**BOTH, "carrier": "ray_client"}, ["ray_client"], "its carrier is ray_client"),
        ({"head_address": "h:10001"}, ["ray_client"], "it has no dashboard"),
        ({"dashboard": "http://h:8265"}, ["agent", "dial_in"], "it has a dashboard"),
    ],
)
def test_which_way_and_why(keys: dict[str, Any], options: list[str], says: str) -> None:
    one = config(**keys)
    assert [way.carrier for way in carrier_options(one)] == options
    choice = CarrierSelector(FakeClock()).choose(one)
    assert choice.carrier == options[0]
    assert says in choice.why


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"carrier": "ray_client", "dashboard": "http://h:8265"}, "needs head_address"),
        ({"carrier": "agent", "head_address": "h:10001"}, "needs dashboard"),
        ({"carrier": "dial_in", "head_address": "h:10001"}, "needs dashboard"),
    ],
)
def test_a_carrier_that_lacks_its_address_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        config(**keys)


def test_ways_that_are_closed_are_remembered_until_the_configuration_changes() -> None:
    choices, both = CarrierSelector(FakeClock()), config(**BOTH)
    assert CANNOT.code == "AGENT_CANNOT_DIAL"
    second = choices.choose_after(both, "agent", CANNOT)
    assert second.carrier == "dial_in"
    assert "cannot dial back to 10.0.0.1:4000" in second.why
    third = choices.choose_after(both, "dial_in", UNREACHABLE)
    assert third.carrier == "ray_client"
    assert "10.0.0.1:4000" in third.why
    assert third.why.endswith(" (no answer). No route."), "sentences"
    assert choices.choose(both) == third
    assert choices.choose(config(**BOTH, weight=2)).carrier == "agent", "it may have been fixed"


def test_a_way_that_was_found_closed_is_tried_again_after_some_minutes() -> None:
    clock, both = FakeClock(), config(**BOTH)
    choices = CarrierSelector(clock)
    choices.choose_after(both, "agent", CANNOT)
    clock.time += CARRIER_RETRY_S / 2
    assert choices.choose_after(both, "dial_in", UNREACHABLE).carrier == "ray_client"
    clock.time += CARRIER_RETRY_S / 2 - 1
    assert choices.choose(both).carrier == "ray_client"
    clock.time += 2
    assert choices.choose(both) == carrier_options(both)[0], (
        "it was closed ten minutes ago, and what is with others does not matter"
    )
    again = choices.choose_after(both, "agent", CANNOT)
    assert again.carrier == "ray_client", "the other one was found closed five minutes ago"
    assert again.why.endswith(". No route.")


def test_after_all_carriers_failed_the_next_try_begins_with_the_first_and_lists_all_problems() -> None:
    choices, one = CarrierSelector(FakeClock()), config(dashboard="http://h:8265")
    assert choices.choose_after(one, "agent", CANNOT).carrier == "dial_in"
    with pytest.raises(LinkProblem, match=r"cannot dial back to .*\. No route\.") as reported:
        choices.choose_after(one, "dial_in", UNREACHABLE)
    assert reported.value.code == "AGENT_UNREACHABLE"
    assert choices.choose(one).carrier == "agent"


def test_failed_fallback_carrier_is_not_kept() -> None:
    choices, both = CarrierSelector(FakeClock()), config(**BOTH)
    choices.choose_after(both, "agent", CANNOT)
    choices.choose_after(both, "dial_in", UNREACHABLE)
    no_ray = LinkProblem("has no ray", code="CONNECTOR_NO_RAY", permanent=True, cluster="a")
    with pytest.raises(LinkProblem, match=r"cannot dial back to .*\. No route\. Has no ray\."):
        choices.choose_after(both, "ray_client", no_ray)
    assert choices.choose(both).carrier == "agent"


@pytest.mark.parametrize("carrier", ["agent", "dial_in", "ray_client"])
def test_a_configured_carrier_has_no_alternative(carrier: Any) -> None:
    with pytest.raises(LinkProblem) as reported:
        CarrierSelector(FakeClock()).choose_after(config(**BOTH, carrier=carrier), carrier, CANNOT)
    assert reported.value is CANNOT


def test_other_problems_are_no_reason_to_go_another_way() -> None:
    choices, both = CarrierSelector(FakeClock()), config(**BOTH)
    slow = LinkProblem("it took long", code="AGENT_SLOW", permanent=False, cluster="a")
    with pytest.raises(LinkProblem, match="it took long"):
        choices.choose_after(both, "agent", slow)
    assert choices.choose(both).carrier == "agent"


def test_the_record_of_a_dialled_agent_round_trips() -> None:
    one = AgentRecord("a", "agent-1", "s", "127.0.0.1", 1, carrier="dial_in", listens=(("h", 7),), identity="pem")
    one = replace(one, fingerprint="ab" * 32)
    assert AgentRecord.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_an_older_record_means_the_agent_carrier() -> None:
    old = AgentRecord("a", "agent-1", "s", "127.0.0.1", 1).to_dict()
    del old["carrier"], old["session"], old["why"]
    read = AgentRecord.from_dict(old)
    assert (read.carrier, read.session, read.why) == ("agent", "", "")
