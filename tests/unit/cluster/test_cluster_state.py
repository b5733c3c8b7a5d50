"""ClusterState: what is remembered of a cluster, and what a decision sees of it."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import ClusterMetadata
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState, WideItemReservation
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import NEW_NODE, NewNode
from tests.unit.lifecycle.driver import actor, job, snapshot, task


def make(settings: dict[str, Any] | None = None, **values: Any) -> ClusterState:
    return ClusterState(ClusterMetadata("c", dashboard="http://c:8265", **values), Settings(**(settings or {})))


def linked(at: float = 10.0, cpus: float = 8, source: str = "agent", **values: Any) -> ClusterState:
    """A linked cluster of one node, with a snapshot of this time."""
    state = make(**values)
    state.link_up("3.11.9", "2.60.0", at)
    state.record_snapshot(snapshot("c", at, cpus, source=source), at)
    return state


def code(state: ClusterState, now: float) -> str | None:
    problem = state.problem(now)
    return None if problem is None else problem.code


# ---- work of ours there


def test_a_place_is_taken_and_given_back() -> None:
    state = linked()
    state.assign(task("t", cpus=3), 11.0)
    view = state.view(11.0)
    assert (view.free["CPU"], view.in_flight) == (5, 1)
    state.release("t", 12.0)
    assert (state.view(12.0).free["CPU"], state.view(12.0).in_flight) == (8, 0)


def test_what_is_sent_although_nothing_is_free_waits_for_a_node() -> None:
    state = linked(cpus=2, autoscaling=True, max_node={"CPU": 8.0})
    state.assign(task("t", cpus=6), 11.0, short=True)
    assert state.ledger.waits_for_node("t")
    assert state.view(11.0).new_node == NewNode({"CPU": 8.0}, {"CPU": 6.0})
    assert state.slots.short_slot_shapes() == []  # it ends soon, but nobody knows when it begins


def test_a_place_passes_from_one_that_ends_to_one_that_was_sent_ahead() -> None:
    state = linked()
    state.assign(task("ended", cpus=8), 11.0)
    state.slots.add_prefetched(task("begun", cpus=8), 11.0)
    state.hand_over("ended", task("begun", cpus=8), 12.0)
    assert list(state.slots.held) == list(state.ledger.reservations) == ["begun"]
    assert state.view(12.0).free["CPU"] == 0


def test_where_there_is_no_place_to_pass_on_it_gets_its_own() -> None:
    state = linked()
    state.slots.add_prefetched(task("begun", cpus=2), 11.0)
    state.hand_over("stranger", task("begun", cpus=2), 12.0)
    assert state.ledger.reservations["begun"].parts == {"n1": {"CPU": 2.0}}
    assert (len(state.slots.held), len(state.slots.prefetched)) == (1, 0)


def test_an_actor_that_is_ready_holds_what_it_asked_for() -> None:
    state = linked()
    light, heavy = actor("light", placement={"CPU": 1.0}), actor("heavy", cpus=2)
    for one in (light, heavy):
        state.assign(one, 11.0)
        state.actor_ready(one, 12.0)
    assert state.ledger.reservations["light"].parts == {}
    assert state.ledger.reservations["heavy"].parts == {"n1": {"CPU": 2.0}}
    assert state.view(12.0).ready_actors == 2


# ---- troubles, the gravest first


def test_before_the_first_answer_it_is_unknown_with_a_request_on_its_way() -> None:
    problem = make().problem(0.0)
    assert problem is not None
    assert (problem.code, problem.being_asked, problem.permanent) == ("CLUSTER_UNKNOWN", True, False)


def test_a_wrong_entry_is_hopeless() -> None:
    state = make()
    state.record_snapshot_failure("wrong token", permanent=True, now=5.0)
    problem = state.problem(6.0)
    assert problem is not None
    assert (problem.code, problem.sentence, problem.permanent, problem.at) == (
        "CLUSTER_MISCONFIGURED",
        "wrong token",
        True,
        5.0,
    )


def test_one_that_never_answered_is_unreachable_with_the_time_of_the_next_request() -> None:
    state = make({"breaker_failures": 2})
    state.record_snapshot_failure("refused.", permanent=False, now=5.0)
    problem = state.problem(6.0)
    assert problem is not None
    assert (problem.code, problem.permanent) == ("CLUSTER_UNREACHABLE", True)
    assert problem.sentence == "it has not answered since it was added: refused."
    state.record_snapshot_failure("refused.", permanent=False, now=10.0)
    again = state.problem(20.0)
    assert again is not None
    assert again.sentence.endswith("added: refused. It is not tried again for 50 s (2 times in a row).")
    state.record_snapshot_failure("nothing listens there", permanent=False, now=10.0)
    again = state.problem(20.0)
    assert again is not None
    assert ": nothing listens there. It is not tried again for" in again.sentence


def test_an_open_breaker_reports_when_it_is_probed() -> None:
    state = linked()
    for _ in range(5):
        state.breaker.record_failure(20.0)
    problem = state.problem(30.0)
    assert problem is not None
    assert (problem.code, problem.sentence) == ("BREAKER_OPEN", "it failed 5 times in a row and is tried again in 50 s")
    probed = state.problem(80.0)
    assert probed is not None
    assert probed.code == "BREAKER_HALF_OPEN"
    assert probed.sentence == "it failed 5 times in a row and is being tried again"


def test_an_open_breaker_reports_the_last_failure_and_counts_down() -> None:
    state = linked(source="http")
    state.link_closed()
    for at in (20.0, 25.0, 30.0, 35.0):
        state.record_snapshot_failure("it gave no answer within 10 s", permanent=False, now=at)
    state.record_snapshot_failure("connection refused", permanent=False, now=40.0)
    for now, left in ((41.0, 59), (70.0, 30)):
        problem = state.view(now).problem
        assert problem is not None
        assert problem.sentence == (
            f"it failed 5 times in a row and is tried again in {left} s; "
            "the last time, the snapshot request failed: connection refused"
        )


def test_a_silent_link_is_reported_before_missing_answers() -> None:
    state = linked()
    state.link_down(20.0)
    for at in (21.0, 26.0, 31.0, 36.0, 41.0):
        state.record_snapshot_failure("connection refused", permanent=False, now=at)
    suspect, lost = state.problem(50.0), state.problem(90.0)
    assert suspect is not None
    assert lost is not None
    failing = "the last time, the snapshot request failed: connection refused"
    assert (suspect.code, lost.code) == ("CLUSTER_SUSPECT", "CLUSTER_LOST")
    assert suspect.sentence == (
        f"its link has been silent for 30 s; it failed 5 times in a row and is tried again in 51 s; {failing}"
    )
    assert lost.sentence == (
        "its link has been silent for 70 s: it is lost; it failed 5 times in a row and is tried again in 11 s; "
        + failing
    )


def test_the_state_of_nodes_is_current_only_while_the_cluster_answers() -> None:
    state = make()
    assert not state.nodes_are_current(0.0)
    state.record_snapshot(snapshot("c", 10.0, 8, source="http"), 10.0)
    assert state.nodes_are_current(25.0)
    assert not state.nodes_are_current(26.0)
    state = linked()
    assert state.nodes_are_current(1000.0), "its link tells of every change"
    state.mark_dead("", 1000.0)
    assert not state.nodes_are_current(1000.0)
    state = linked()
    state.link_down(1000.0)
    assert not state.nodes_are_current(1000.0)


def test_an_answer_after_silence_counts_for_the_breaker() -> None:
    state = linked(source="http")
    state.link_closed()
    for at in (20.0, 25.0):
        state.record_snapshot_failure("timed out", permanent=False, now=at)
    assert state.breaker.failures_in_a_row == 2
    state.record_snapshot(snapshot("c", 30.0, 8, source="http"), 30.0)
    assert state.breaker.failures_in_a_row == 0
    assert (state.silent_since, code(state, 30.0)) == (None, None)


def test_frequent_queries_do_not_open_the_breaker() -> None:
    """Each look asks, and none counts. Of the scheduler's own requests one counts in each ``snapshot_interval_s``."""
    state = linked(source="http")
    state.link_closed()
    for look in range(100):
        at = 20.0 + look / 10
        state.record_snapshot_failure("timed out", permanent=False, now=at, requested=False)
    assert (state.breaker.failures_in_a_row, code(state, 30.0)) == (0, "STALE_SNAPSHOT")
    for request in range(100):
        state.record_snapshot_failure("timed out", permanent=False, now=20.0 + request / 10)
    assert (state.breaker.failures_in_a_row, code(state, 30.0)) == (2, "STALE_SNAPSHOT")
    state.record_snapshot(snapshot("c", 30.0, 8, source="http"), 30.0)
    state.record_snapshot_failure("timed out", permanent=False, now=30.1)
    assert state.breaker.failures_in_a_row == 1, "the first one after an answer counts"


def test_a_probe_that_fails_counts_however_soon_it_comes() -> None:
    state = linked(source="http", settings={"breaker_failures": 1, "breaker_recovery_s": 1, "snapshot_interval_s": 5})
    state.link_closed()
    for at in (20.0, 21.5, 23.0):
        state.record_snapshot_failure("timed out", permanent=False, now=at)
        assert state.breaker.half_open_at == at + 1.0


def test_a_silent_link_is_suspect_and_then_lost() -> None:
    state = linked()
    state.link_down(20.0)
    just_now = state.problem(20.2)
    assert just_now is not None
    assert just_now.sentence == "its link broke less than a second ago"
    assert code(state, 30.0) == "CLUSTER_SUSPECT"
    assert code(state, 80.0) == "CLUSTER_LOST"
    state.link_up("3.11.9", "2.60.0", 90.0)
    state.record_snapshot(snapshot("c", 90.0, 8), 90.0)
    assert code(state, 90.0) is None


def test_a_link_is_lost_when_its_silence_has_lasted_long_enough() -> None:
    state = linked()
    state.link_down(20.0, 15.0)
    suspect = state.problem(21.0)
    assert suspect is not None
    assert suspect.sentence == "its link has been silent for 16 s"
    assert "in 44 s" in state.lease_wait(21.0)
    assert (code(state, 64.9), code(state, 65.0)) == ("CLUSTER_SUSPECT", "CLUSTER_LOST")
    assert "in 0 s" in state.lease_wait(70.0), "the link is about to end it"


def test_a_snapshot_becomes_stale_without_a_link() -> None:
    state = linked()
    assert code(state, 1000.0) is None  # the link would have reported a change
    state.link_closed()
    assert code(state, 25.0) is None
    problem = state.problem(26.0)
    assert problem is not None
    assert (problem.code, problem.sentence) == (
        "STALE_SNAPSHOT",
        "its last snapshot is 16 s old; a request is under way",
    )
    assert problem.being_asked
    state.record_snapshot_failure("timed out", permanent=False, now=27.0)
    failed = state.problem(28.0)
    assert failed is not None
    assert (failed.sentence, failed.being_asked) == ("its last snapshot is 18 s old: timed out", False)


def test_a_silent_head_is_a_problem_until_the_next_snapshot() -> None:
    state = linked()
    state.head_silent_since = 20.0
    problem = state.problem(36.0)
    assert problem is not None
    assert (problem.code, problem.permanent) == ("HEAD_SILENT", False)
    assert problem.sentence == "its link is up, but its head (GCS or raylet) has not answered for 16 s"
    assert "17 s" in str(state.view(37.0).problem), "the view grows old with it"
    state.link_down(40.0)
    assert code(state, 41.0) == "CLUSTER_SUSPECT", "that is graver"
    state.link_up("3.11.9", "2.60.0", 42.0)
    assert code(state, 43.0) == "HEAD_SILENT", "the same agent may be back, and the head is as it was"
    state.record_snapshot(snapshot("c", 44.0, 8), 44.0)
    assert code(state, 44.0) is None


def test_a_head_is_not_silent_for_an_agent_that_is_gone() -> None:
    state = linked()
    state.head_silent_since = 20.0
    state.link_closed()
    assert state.head_silent_since is None
    state.head_silent_since = 20.0
    state.reconfigure(state.metadata)
    assert state.head_silent_since is None


def test_a_snapshot_from_before_the_link_is_no_update_of_it() -> None:
    state = make()
    state.record_snapshot(snapshot("c", 10.0, 8, source="http"), 10.0)
    state.link_up("3.11.9", "2.60.0", 50.0)
    assert not state.receives_updates()
    assert code(state, 50.0) == "STALE_SNAPSHOT"


# ---- what concerns one kind only


@pytest.mark.parametrize("permanent", [True, False])
def test_a_link_that_cannot_be_made_is_tried_again(permanent: bool) -> None:
    state = linked()
    state.record_link_failure("no way back", permanent=permanent, now=20.0)
    problem = state.link_problem(50.0)
    assert problem is not None
    assert (problem.code, problem.permanent) == ("LINK_FAILED", permanent)
    again = "" if permanent else ". It is tried again in 30 s."
    assert problem.sentence == f"no link for tasks could be made: no way back{again}"
    assert state.link_problem(80.0) is None
    assert linked().link_problem(50.0) is None


def test_a_silent_dashboard_is_remembered_since_it_was_first_silent() -> None:
    state = linked()
    assert state.job_problem() is None
    assert state.record_dashboard_failure("refused", 20.0) == 20.0
    assert state.record_dashboard_failure("timed out", 50.0) == 20.0
    problem = state.job_problem()
    assert problem is not None
    assert (problem.code, problem.at, problem.permanent) == ("DASHBOARD_SILENT", 20.0, False)
    assert state.view(60.0).job_problem == problem
    state.record_snapshot(snapshot("c", 60.0, 8), 60.0)
    assert state.job_problem() is not None  # the agent says nothing of the dashboard
    state.record_snapshot(snapshot("c", 61.0, 8, source="http"), 61.0)
    assert state.job_problem() is None


# ---- changes of its entry


def test_a_changed_entry_forgets_old_troubles_and_a_new_address_all_it_knew() -> None:
    state = linked()
    state.record_snapshot_failure("timed out", permanent=True, now=20.0)
    state.record_link_failure("no", permanent=True, now=20.0)
    state.record_dashboard_failure("refused", 20.0)
    state.reconfigure(ClusterMetadata("c", dashboard="http://c:8265", weight=2.0))
    assert (code(state, 21.0), state.link_problem(21.0), state.job_problem()) == (None, None, None)
    assert state.view(21.0).has_snapshot
    assert state.python_version == "3.11.9"
    state.reconfigure(ClusterMetadata("c", dashboard="http://elsewhere:8265"))
    view = state.view(22.0)
    assert (view.has_snapshot, view.nodes, view.python_version) == (False, (), None)
    assert code(state, 22.0) == "CLUSTER_UNKNOWN"


# ---- views


def test_a_view_is_kept_until_something_changes_or_its_time_is_over() -> None:
    reported: list[str] = []
    state = ClusterState(ClusterMetadata("c", dashboard="http://c:8265"), Settings(), reported.append)
    state.link_up("3.11.9", "2.60.0", 10.0)
    state.record_snapshot(snapshot("c", 10.0, 8), 10.0)
    first = state.view(11.0)
    assert state.view(12.0) is first
    reported.clear()
    state.assign(task("t"), 13.0)
    assert reported == ["c"]
    second = state.view(13.0)
    assert second is not first
    third = state.view(13.0, 50.0)
    assert third is not second  # another submission interval
    assert state.view(13.5, 50.0) is third
    assert state.view(14.0, 50.0) is not third  # its sentences tell seconds
    assert state.view(50.0, 50.0) is state.view(999.0, 50.0)


def test_what_is_kept_for_one_is_not_free_for_the_others() -> None:
    state = linked()
    state.wide_reservation = WideItemReservation("wide", {"n1": {"CPU": 6.0}}, 0.0, None)
    view = state.view(11.0)
    assert (view.free["CPU"], view.reserved_for) == (2, "wide")
    assert view.without_reservation is not None
    assert view.without_reservation.free["CPU"] == 8


def test_jobs_spread_and_count_apart() -> None:
    state = make()
    state.record_snapshot(snapshot("c", 10.0, 4, 4, source="http"), 10.0)
    state.assign(job("j", cpus=6), 11.0)
    assert sorted(state.ledger.reservations["j"].parts) == ["n1", "n2"]
    assert NEW_NODE not in state.ledger.reservations["j"].parts
    view = state.view(11.0)
    assert (view.running_jobs, view.in_flight, view.free["CPU"]) == (1, 1, 2)
    state.release("j", 12.0)
    assert state.view(12.0).running_jobs == 0


def test_a_reconfigured_cluster_starts_without_earlier_problems() -> None:
    state = ClusterState(ClusterMetadata("a", dashboard="http://a:1"), Settings(breaker_failures=1))
    state.record_snapshot(snapshot("a", 1.0, 4, 8), 1.0)
    state.breaker.record_failure(2.0)
    assert state.problem(2.0) is not None
    assert len(state.ledger.largest_node_set) == 2
    state.reconfigure(ClusterMetadata("a", dashboard="http://a:1", weight=2.0))
    assert state.problem(2.0) is None
    assert (state.ledger.largest_node_set, state.ledger.past_node_sizes) == ((), ())
