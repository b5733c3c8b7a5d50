"""What notebooks show: tables in which everything is escaped; what is printed elsewhere stays as it was."""

from __future__ import annotations

import json
import pickle
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
from ray_multicluster_scheduler.app.client_api.cluster_rows import ClusterRow, ClusterRows
from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.model import Rejection, SchedulingDecision
from ray_multicluster_scheduler.common.model.decision import CandidateReport
from ray_multicluster_scheduler.control_plane.runtime.explanation_text import Explanation
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from tests.unit.client_api.actor_plane import ActorPlane, Counter
from tests.unit.client_api.test_collecting import NOBODY, fail, handle, succeed
from tests.unit.lifecycle.driver import task
from tests.unit.service.http_service import HttpService

EVIL = "<script>alert('1')</script>&\"x\""
ALLOWED = {"table", "caption", "tr", "th", "td"}


class Page(HTMLParser):
    """Fails for any element or attribute that is not a plain table's."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self._open = list[str](), list[str]()
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED
        assert {name for name, _ in attrs} <= {"style"}
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def shown(one: Any) -> list[str]:
    """The texts of its cells."""
    return Page(one._repr_html_()).text


def test_a_handle_shows_what_is_known_here() -> None:
    one = TaskHandle(Item(task("t1", name=EVIL)), NOBODY)
    assert shown(one) == ["TaskHandle", "id", "t1", "name", EVIL, "state", "PENDING"]
    fail(one, ValueError("bad"))
    assert shown(one)[-4:-2] == ["state", "FAILED"]
    assert repr(one) == "<TaskHandle t1 FAILED on 'mac'>"


def test_a_handle_and_an_explanation_of_a_retry_name_what_it_repeats() -> None:
    again = TaskHandle(Item(task("again", repeats=EVIL)), NOBODY)
    assert "repeats" in Page(again._repr_html_()).text
    assert EVIL in Page(again._repr_html_()).text
    assert f", repeats {EVIL}>" in repr(again)
    assert ", repeats" not in repr(TaskHandle(Item(task("first")), NOBODY))
    explanation = Explanation(
        id="again", state="QUEUED", code="NEW", sentence="waits", repeats=EVIL, repeated_by=["x", "y"]
    )
    assert {"repeats", EVIL, "repeated by", "x, y"} <= set(Page(explanation._repr_html_()).text)
    assert f"repeats: {EVIL}" in str(explanation)
    assert "repeated by: x, y" in str(explanation)


def test_handles_of_values_and_what_succeeded() -> None:
    kept = ObjectHandle(pickling.dumps("kept"), set(), (), NOBODY)
    assert shown(kept)[0] == "ObjectHandle"
    one = handle()
    succeed(one)
    assert "SUCCEEDED" in shown(one)


def test_actors_and_their_calls() -> None:
    with ActorPlane() as plane:
        scheduler = UnifiedScheduler(plane.runtime.config)
        scheduler._runtime, scheduler._submission = plane.runtime, plane.submission
        actor = scheduler.submit_actor_async(Counter, name="one")
        assert shown(actor)[:1] == ["ActorHandle"]
        assert "Counter 'one'" in shown(actor)
        call = actor.add.remote(1)
        assert "\n" not in repr(actor) + repr(call)
        assert shown(call)[:1] == ["ActorCallHandle"]
        assert any("add" in text for text in shown(call))


def test_an_explanation_shows_its_tables(tmp_path: Path) -> None:
    with HttpService(tmp_path, works=True) as service, UnifiedScheduler(address=service.address) as scheduler:
        one = scheduler.submit_task_async(str.upper, ("a",), name="<b>")
        assert one.result() == "A"
        explanation = scheduler.explain(one)
        cells = shown(explanation)
        assert {"<b>", "SUCCEEDED", "Clusters", "Attempts", "History", "mac"} <= set(cells)
        assert "\n" not in repr(explanation)

        rows = scheduler.list_clusters(refresh=True)
        assert shown(rows)[:8] == ["cluster", "state", "why", "items", "nodes", "free", "tags", "Ray"]
        assert "8 of 8 CPU" in " ".join(shown(rows))
        assert "cluster mac" in shown(scheduler.cluster_info("mac"))


def test_a_plan_shows_its_table(tmp_path: Path) -> None:
    with HttpService(tmp_path) as service, UnifiedScheduler(address=service.address) as scheduler:
        fits, never = scheduler.plan({"CPU": 1}), scheduler.plan({"CPU": 1, EVIL: 5})
        assert shown(fits)[:3] == ["Decision", "cluster", "mac"]
        assert {"Clusters", "verdict", "chosen", "passes every filter"} <= set(shown(fits))
        assert {"never", never.code} <= set(shown(never))
        assert any(EVIL in text for text in shown(never))


def test_what_is_short_is_shown_short() -> None:
    explanation = Explanation(id=EVIL, state="EXPIRED", code="GONE", sentence=EVIL)
    assert shown(explanation) == ["id", EVIL, "state", "EXPIRED", "code", "GONE", "sentence", EVIL]


def test_a_waiting_decision_shows_its_reason_escaped() -> None:
    rows = (CandidateReport(EVIL, (Rejection(EVIL, EVIL),), ranks={EVIL: 1}, scores={EVIL: 0.5}),)
    waits = SchedulingDecision(EVIL, 1.0, None, EVIL, EVIL, rows, EVIL)
    assert shown(waits)[:7] == ["Decision", "code", EVIL, "sentence", EVIL, "continues when", EVIL]
    assert shown(waits)[-5:] == [EVIL, "waits", f"{EVIL} 1", f"{EVIL} 0.500", f"{EVIL}: {EVIL}"]
    assert "Clusters" not in shown(SchedulingDecision("t", 1.0, None, "X", "nothing is there"))


def test_a_waiting_one_says_when() -> None:
    explanation = Explanation(
        id="t1",
        state="QUEUED",
        code="WAITS",
        sentence="full",
        unblocked_by="room",
        queue={"position": 3, "ahead": []},
        estimate={"text": "soon"},
        decision={"candidates": [], "cluster": None},
    )
    assert shown(explanation)[-6:] == ["continues when", "room", "position in the queue", "3", "may start", "soon"]


ROW = {
    "name": EVIL,
    "state": "UP",
    "sentence": EVIL,
    "cordoned": True,
    "items": 2,
    "tags": [EVIL, "b"],
    "total": {"CPU": 8.0, EVIL: 1.5},
    "free": {"CPU": 4.0},
    "nodes": None,
}


def test_rows_of_clusters_are_lists_and_dicts_like_any_other() -> None:
    rows = ClusterRows([ROW])
    assert rows == [ROW]
    assert json.loads(json.dumps(rows)) == [ROW]
    assert type(pickle.loads(pickle.dumps(rows))) is list
    assert repr(rows) == repr([ROW])
    cells = shown(rows)
    assert f"4 of 8 CPU, 0 of 1.5 {EVIL}" in cells
    assert f"cordoned; {EVIL}" in cells
    assert shown(ClusterRow(ROW))[0] == f"cluster {EVIL}"
    assert f"cordoned; its queue is paused: repairs; {EVIL}" in shown(ClusterRows([{**ROW, "paused": "repairs"}]))


@pytest.mark.parametrize("rows", [[], [{"name": "a"}]])
def test_little_is_known_of_a_cluster(rows: list[dict[str, Any]]) -> None:
    assert len(shown(ClusterRows(rows))) >= 8
