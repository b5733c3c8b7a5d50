"""What others use: bounds from each snapshot, held until a later one contradicts them."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.scheduler.cluster.external_usage import ExternalUsage, UsageObservation
from ray_multicluster_scheduler.scheduler.cluster.ledger import Ledger
from tests.unit.cluster.test_ledger import free, reserve, seen


def sight(
    until: float, used: float, surely: float = 0, maybe: float = 0, *, staleness: float = 0.3
) -> UsageObservation:
    return UsageObservation(until - staleness, until, {"CPU": used}, {"CPU": surely}, {"CPU": maybe})


def believed(*sights: UsageObservation) -> float:
    others = ExternalUsage()
    for one in sights:
        others.observe("n1", one)
    found = others.on_node("n1")
    assert found is not None
    return found["CPU"]


def test_a_snapshot_alone_gives_the_lower_bound() -> None:
    assert believed(sight(10, used=6, surely=1, maybe=4)) == 2
    assert believed(sight(10, used=6, maybe=9)) == 0


def test_of_an_unknown_node_nothing_is_known() -> None:
    others = ExternalUsage()
    others.attribute_to_us("n1", 0.0, {"CPU": 1.0})
    assert others.on_node("n1") is None


def test_a_lower_bound_holds_while_nothing_contradicts_it() -> None:
    assert believed(sight(10, used=8), sight(14, used=8, maybe=8)) == 8


def test_and_is_held_down_by_what_was_surely_seen_later() -> None:
    assert believed(sight(10, used=8), sight(14, used=8, surely=5, maybe=8)) == 3
    assert believed(sight(10, used=8), sight(14, used=0)) == 0


def test_one_that_may_show_an_earlier_moment_contradicts_nothing() -> None:
    assert believed(sight(10, used=8), sight(10.2, used=0)) == 8
    assert believed(sight(10, used=8), sight(10.2, used=0), sight(10.4, used=0)) == 0


def test_ordered_observations_are_later() -> None:
    early, late = (
        UsageObservation(9.7, 10, {"CPU": 8.0}, {}, {}, ("agent", 10)),
        UsageObservation(9.9, 10.2, {"CPU": 2.0}, {}, {}, ("agent", 10.2)),
    )
    assert believed(early, late) == believed(late, early) == 2


def test_two_answers_with_one_report_of_the_cluster_show_the_same_moment() -> None:
    reported = [
        UsageObservation(until - 6, until, {"CPU": used}, {}, {}, ("http", at))
        for until, used, at in ((10.0, 8.0, 700.0), (15.0, 8.0, 700.0), (15.1, 2.0, 705.0))
    ]
    assert believed(*reported[:2]) == 8
    assert believed(*reported) == 2


def test_clocks_of_different_sources_are_not_compared() -> None:
    early = UsageObservation(9.7, 10, {"CPU": 8.0}, {}, {}, ("agent", 10.0))
    assert believed(early, UsageObservation(9.9, 10.2, {"CPU": 2.0}, {}, {}, ("http", 705.0))) == 8


def test_others_that_leave_step_by_step_are_gone_when_an_agent_reports_it() -> None:
    ledger = Ledger()
    for at, left in ((10, 0), (10.2, 4), (10.4, 8)):
        ledger.observe(seen(at, n1=left))
    assert free(ledger) == {"n1": 8}


def test_the_order_of_arrival_does_not_matter() -> None:
    one, two, three = sight(10, used=8), sight(14, used=8, maybe=8), sight(14.1, used=8, surely=2, maybe=8)
    assert believed(one, two, three) == believed(three, one, two) == believed(two, three, one) == 6


def test_a_claim_is_held_until_it_was_not_confirmed_for_long() -> None:
    others = ExternalUsage()
    others.observe("n1", sight(0, used=5))
    for at in range(1, 31):
        others.observe("n1", sight(at, used=8, surely=2, maybe=8 - at % 2))
        assert others.on_node("n1") == {"CPU": 5}
    for at in range(31, 33):
        others.observe("n1", sight(at, used=8, surely=2, maybe=8))
    assert others.on_node("n1") == {"CPU": 1}
    others.keep_only(["n2"])
    assert others.on_node("n1") is None


def test_time_alone_drops_no_bound() -> None:
    """An agent tells of changes only: the last thing it said holds, however long ago that was."""
    assert believed(sight(0, used=5), sight(900, used=8, maybe=8)) == 5


def test_claims_are_bounded() -> None:
    others = ExternalUsage()
    for number in range(50):  # all within one staleness, each claims less than the one before
        others.observe("n1", sight(10 + number / 1000, used=60 - number))
    assert others.on_node("n1") == {"CPU": 60}
    assert len(others._bounds["n1"]) <= 6
    others.observe("n1", sight(20, used=1))
    assert others.on_node("n1") == {"CPU": 1}
    assert len(others._bounds["n1"]) == 1


def test_a_late_observation_without_new_information_is_dropped() -> None:
    assert believed(sight(10, used=5), sight(9.9, used=3)) == 5
    assert believed(sight(10, used=5), sight(9.9, used=7)) == 7
    assert believed(sight(10, used=5), sight(9.0, used=7)) == 5


def test_an_excuse_reaches_back_to_when_it_may_have_been_ours() -> None:
    others = ExternalUsage()
    others.observe("n1", sight(10, used=4))
    others.observe("n1", sight(10.1, used=3))
    others.attribute_to_us("n1", 10.05, {"CPU": 2.0})
    assert others.on_node("n1") == {"CPU": 4}  # that was before
    others.attribute_to_us("n1", 9.0, {"CPU": 2.0})
    assert others.on_node("n1") == {"CPU": 2}


def test_a_resource_that_a_node_gets_later() -> None:
    others = ExternalUsage()
    others.observe("n1", UsageObservation(9, 10, {"CPU": 1.0}, {}, {}))
    others.observe("n1", UsageObservation(10.5, 11, {"CPU": 1.0, "gpu": 2.0}, {}, {"CPU": 1.0, "gpu": 1.0}))
    assert others.on_node("n1") == {"CPU": 1.0, "gpu": 1.0}


# ---- through the ledger


@pytest.mark.parametrize("source", ["agent", "http"])
def test_the_end_of_our_own_work_makes_no_room_that_others_use(source: str) -> None:
    """Four of ours and four of others on eight: when ours end, four are free, and not eight."""
    ledger = Ledger()
    ledger.observe(seen(10, source, n1=4))
    reserve(ledger, "t", 4, at=20)
    ledger.observe(seen(30, source, n1=0))
    ledger.release("t", 40)
    assert free(ledger) == {"n1": 4}
    ledger.observe(seen(40.1, source, n1=4))  # the last that an agent says: it tells of changes only
    assert free(ledger) == {"n1": 4}


def test_work_that_has_not_started_yet_is_not_taken_off_the_use_of_others() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=4))
    reserve(ledger, "t", 2, at=20)
    ledger.observe(seen(20.5, n1=4))  # it is still on its way
    assert free(ledger) == {"n1": 2}


def test_others_that_leave_are_noticed_next_to_work_that_was_seen_to_start() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=4))
    reserve(ledger, "t", 4, at=20)
    ledger.move("t", "n1", 20.2)
    ledger.observe(seen(20.6, n1=4))
    assert free(ledger) == {"n1": 4}


def test_others_that_leave_are_noticed_next_to_settled_reservations() -> None:
    ledger = Ledger()
    ledger.observe(seen(10, n1=4))
    reserve(ledger, "t", 4, at=20)
    ledger.observe(seen(23, n1=4))
    assert free(ledger) == {"n1": 4}


def test_use_that_proves_to_be_our_own_is_not_held_against_others() -> None:
    """It was started on another node than expected, and seen there before anybody said so."""
    ledger = Ledger()
    ledger.observe(seen(10, n1=8, n2=8))
    reserve(ledger, "t", 3, at=11)
    ledger.observe(seen(11.5, n1=8, n2=5))
    assert free(ledger) == {"n1": 5, "n2": 5}
    assert ledger.move("t", "n2", 11.6)
    assert free(ledger) == {"n1": 8, "n2": 5}


def test_an_excuse_speaks_of_what_it_names_only() -> None:
    others = ExternalUsage()
    others.observe("n1", UsageObservation(9, 10, {"CPU": 4.0, "GPU": 2.0}, {}, {}))
    others.attribute_to_us("n1", 9.0, {"CPU": 1.0})
    assert others.on_node("n1") == {"CPU": 3.0, "GPU": 2.0}


def test_of_two_sights_of_one_moment_the_higher_claim_is_kept_once() -> None:
    others = ExternalUsage()
    for used in (3, 5, 5, 4):
        others.observe("n1", sight(10, used=used))
    assert others.on_node("n1") == {"CPU": 5}
    assert len(others._bounds["n1"]) == 1


def test_claims_that_are_summed_up_give_way_like_the_younger_of_them() -> None:
    others = ExternalUsage()
    for number in range(7):
        others.observe("n1", sight(10 + number / 10, used=60 - number, staleness=5))
    others.observe(
        "n1", UsageObservation(10.05, 15, {"CPU": 0.0}, {}, {})
    )  # surely later than the first one, and no other
    assert others.on_node("n1") == {"CPU": 60}
    others.observe("n1", UsageObservation(10.25, 15, {"CPU": 0.0}, {}, {}))  # later than the third one, too
    assert others.on_node("n1") == {"CPU": 57}
