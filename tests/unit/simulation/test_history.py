"""Every kind of history line survives a round trip through a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import (
    CandidateReport,
    ClusterMetadata,
    FailureClass,
    GangDescription,
    MemberDescription,
    NodeSnapshot,
    Rejection,
    ResourceSnapshot,
    SchedulingDecision,
    TaskDescription,
    TaskState,
)
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterProblem
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle import instructions as out
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending, FreedRoom
from ray_multicluster_scheduler.scheduler.lifecycle.rows import ClusterRow, ItemRow, OwnerRow, PoolRow, SentRow
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.queue.owner_account import Holding
from ray_multicluster_scheduler.simulation import history as lines
from tests.unit.lifecycle.driver import actor, cluster, job, task

GANG = GangDescription(
    (MemberDescription("m1", {"CPU": 1.0}, "f", "a"), MemberDescription("m2", {"CPU": 2.0}, "f", "b"))
)
STEP = out.Transition("t1", 2, TaskState.DISPATCHING, 1, 3.5, "PLACED", "goes to a", "a")
ROWS = (CandidateReport("a", node_id="n1"), CandidateReport("b", (Rejection("TOO_BIG", "too big", permanent=True),)))
ROW = ItemRow(
    task("t1", 2),
    3,
    (STEP,),
    5,
    ending=Ending("preempt", "enough", force=True, newcomer="t9"),
    room=FreedRoom("a", {"n1": {"CPU": 2.0}}, ("t7", "t8"), 3.0),
    saved="digest",
    preempted_at=2.0,
    failures={FailureClass.CRASH: 2},
    earlier_fences=(4,),
    decision=SchedulingDecision("t1", 3.5, "a", "PLACED", "goes to a", ROWS),
    holding=Holding(0.5, 0.0, 3.5),
    parts={"n1": {"CPU": 2.0}},
)
CLUSTER = ClusterRow("a", cordoned=True, paused="now", dead=ClusterProblem("DEAD", "it burnt"))

POOL = Pool(name="p", place_quota={"a": {"CPU": 2.0}}, labels={"team": "nlp"}, cohort="c", owners=("ann",))

EVENTS: list[events.Event] = [
    events.Submitted(task("t1", 2, tags=("x",), retry_on=("ValueError",), after=("t0",)), "waits", 7),
    events.Submitted(actor("t2")),
    events.Submitted(job("t3", allow_clusters=("a",))),
    events.Submitted(TaskDescription("t4", "gang", "t4", gang=GANG)),
    events.ArgumentsReady("t1", "a", 3),
    events.ArgumentsFailed("t1", "no", "ValueError"),
    events.CancelRequested("t1", "enough", force=True),
    events.SnapshotTaken(
        ResourceSnapshot("a", 1.0, (NodeSnapshot("n1", {"CPU": 4.0}, None, True),), "http", observed={"cpu": 0.5})
    ),
    events.SnapshotFailed("a", "TIMEOUT", "silent", permanent=True),
    events.DashboardChecked("a", None),
    events.HeadSilent("a", 16.0),
    events.LinkUp("a", "3.11.2", "2.60.0", "s1"),
    events.LinkDown("a", "silent"),
    events.ProcessesDead("a", "all of them"),
    events.LinkClosed("a", "over"),
    events.LinkFailed("a", "NO", "no way", permanent=True),
    events.DispatchAccepted("t1", 1),
    events.DispatchRefused("t1", 1, FailureClass.CLUSTER, "NO", "no"),
    events.Started("t1", 1, 2.5, "n1"),
    events.PlaceMoved(("t1", 1), ("t2", 3)),
    events.AttemptFinished("t1", 1, "failed", FailureClass.USER, "ValueError", "", "bad", 0.5, 2.0, "n1"),
    events.TimerFired("queue:t1"),
    events.ClusterChanged("a", cluster("a", tags=("x", "y"), max_node={"CPU": 3.0}), cordoned=True),
    events.ClusterChanged("a", None),
    events.CordonChanged("a", cordoned=True),
    events.ClusterDeclaredDead("a", "it burnt"),
    events.ClusterChecked("a"),
    events.HoldRequested("t1", "later"),
    events.ReleaseRequested("t1"),
    events.PriorityChanged("t1", 4),
    events.QueuePaused("owner", "ann", "why not"),
    events.QueueResumed("cluster", "a"),
    events.OwnerLimitsChanged("ann", OwnerLimits(max_running=3, max_gpus=0.5)),
    events.OwnerLimitsChanged("ann", None),
    events.StateSaved("t1", 1, "digest"),
    events.PoolChanged(POOL),
    events.PoolDeleted("p"),
    events.Restored(
        (ROW,),
        (CLUSTER,),
        (OwnerRow("ann", "later"), OwnerRow("bob", None, OwnerLimits(weight=2))),
        (PoolRow("p", POOL), PoolRow("gone")),
        7,
        8,
        (SentRow("job", "a", 2.5),),
    ),
    events.Continued(),
]

INSTRUCTIONS: list[out.Instruction] = [
    out.Persist(STEP, SchedulingDecision("t1", 3.5, "a", "PLACED", "goes to a", ROWS)),
    out.Persist(STEP),
    out.Publish(STEP),
    out.Remember("t1"),
    out.RememberFleet(),
    out.AdoptAttempt("t1", 1, 9, "a"),
    out.Dispatch("t1", 1, 9, "a", "queue", short=True),
    out.StartAttempt("t1", 1, "a"),
    out.RecallAttempt("t1", 1, "a"),
    out.CancelAttempt("t1", 1, "a", force=True),
    out.PreemptAttempt("t1", 1, "a", 30.0),
    out.RefreshSnapshot("a"),
    out.CheckDashboard("a"),
    out.SetTimer("retry:t1", 8.25),
    out.ClearTimer("retry:t1"),
    out.Complete("t1", TaskState.FAILED, 1, "a", "TaskTimeoutError", "too long", "be quick"),
    out.Continue(),
]

LINES: lines.History = [
    lines.RunSetup(
        0.0, {"lease_s": 5, "owners": {"ann": {"weight": 2}}}, (ClusterMetadata("a", tags=("x",)),), (POOL,)
    ),
    *(lines.EventHandled(1.0, one) for one in EVENTS),
    *(lines.InstructionIssued(1.5, one) for one in INSTRUCTIONS),
    lines.AttemptBegan(2.0, "a", "t1", 1, 9, {"n1": {"CPU": 2.0}}, "gang"),
    lines.AttemptEnded(3.0, "a", "t1", 1, "lease"),
    lines.NodesChanged(4.0, "a", {}),
    lines.ControlPlaneCrashed(5.0),
    lines.ControlPlaneRestarted(6.0),
    lines.FaultInjected(7.0, "an event was lost"),
    lines.StateDump(8.0, {"t1": ("NO_CAPACITY", "no room")}, ("a",), ("a timer",), ("another fence",)),
]


def test_every_kind_is_covered() -> None:
    assert {type(one) for one in EVENTS} == set(get_args(events.Event))
    assert {type(one) for one in INSTRUCTIONS} == set(get_args(out.Instruction))
    assert {type(one) for one in LINES} == set(get_args(lines.HistoryLine))


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(line)[:40])
def test_a_line_survives_a_round_trip(line: lines.HistoryLine) -> None:
    assert lines.from_dict(json.loads(json.dumps(lines.to_dict(line)))) == line


def test_a_file_survives_a_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    lines.write_history(file, LINES)
    assert list(lines.read_history(file)) == LINES
    assert len(file.read_text().splitlines()) == len(LINES)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "None is not a kind of history line"),
        ('{"line": "Over", "at": 1}', "A history line of kind Over cannot be read"),
        ('{"line": "Fed", "at": 1, "event": {"event": "Sneezed"}}', "'Sneezed' is not an event"),
        ('{"line": "Told", "at": 1, "instruction": {"instruction": "Fly"}}', "'Fly' is not an instruction"),
        ("not even JSON", "Expecting value"),
        ("[]", "has no attribute"),
        (b"\xff\xfe\x00", "Expecting value"),
        (b'{"line": "\xff"}', "codec can't decode"),
    ],
)
def test_an_invalid_history_is_refused_with_its_line(tmp_path: Path, text: str | bytes, problem: str) -> None:
    file = tmp_path / "bad.jsonl"
    data = text if isinstance(text, bytes) else text.encode()
    file.write_bytes(b'{"line": "Crashed", "at": 1}\n' + data + b"\n")
    with pytest.raises(ConfigurationError, match=f"bad.jsonl, line 2: .*{problem}"):
        list(lines.read_history(file))
