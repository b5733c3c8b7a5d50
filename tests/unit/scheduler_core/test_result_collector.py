"""What happens on links becomes events of the machine; values and output are kept beside."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.scheduler_core.output_store import OutputStore
from ray_multicluster_scheduler.scheduler.scheduler_core.result_collector import ResultCollector
from tests.support.fake_link import FakeLink
from tests.support.links import call, idle_snapshot


def collector() -> tuple[ResultCollector, list[events.Event], OutputStore]:
    posted: list[events.Event] = []
    output = OutputStore()
    return ResultCollector(posted.append, output), posted, output


def test_a_call_from_a_link_to_the_machine() -> None:
    collect, posted, output = collector()
    link = FakeLink("a", collect)
    link.up()
    link.submit([call("t1")])
    link.accept("t1")
    link.begin("t1", at=7.0, node_id="n2")
    link.print("t1", "hello")
    link.finish("t1", b"value")
    link.down("no contact")
    collect.processes_dead("a", "all of them")
    link.lose("gone")
    assert posted == [
        events.LinkUp("a", "3.11.7", "2.60.0", "session_1"),
        events.DispatchAccepted("t1", 1),
        events.Started("t1", 1, 7.0, "n2"),
        events.AttemptFinished("t1", 1, "succeeded"),
        events.LinkDown("a", "no contact"),
        events.ProcessesDead("a", "all of them"),
        events.LinkClosed("a", "gone"),
    ]
    result = collect.result("t1")
    assert result is not None
    assert result.payload == b"value"
    assert "".join(output.follow("t1", lambda: (1, True))) == "hello"
    assert ("t1", 1) in output._closed, "the output is closed with the attempt"


def test_a_failure_is_reported_with_all_fields() -> None:
    collect, posted, _ = collector()
    collect.finished("a", CallResult("t1", 2, "failed", b"e", FailureClass.CRASH, "OOM", "OUT_OF_MEMORY", "killed"))
    assert posted == [events.AttemptFinished("t1", 2, "failed", FailureClass.CRASH, "OOM", "OUT_OF_MEMORY", "killed")]


def test_the_newest_answer_is_kept_until_it_is_forgotten() -> None:
    collect, _, _ = collector()
    assert collect.result("t1") is None
    collect.finished("a", CallResult("t1", 1, "failed", failure=FailureClass.USER))
    collect.finished("b", CallResult("t1", 2, "succeeded", b"v"))
    collect.finished("a", CallResult("t1", 1, "succeeded", b"late"))  # its cluster was given up, and came back
    newest = collect.result("t1")
    assert newest is not None
    assert newest.attempt == 2
    collect.forget("t1")
    collect.forget("t1")
    assert collect.result("t1") is None


def test_a_snapshot_goes_to_the_machine() -> None:
    collect, posted, _ = collector()
    collect.snapshot(idle_snapshot())
    assert posted == [events.SnapshotTaken(idle_snapshot())]
