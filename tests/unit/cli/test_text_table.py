"""Tables within a text: no cell leaves its column, and nothing is left out, however narrow the terminal is."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from ray_multicluster_scheduler.cli.commands.explain import explanation_text
from ray_multicluster_scheduler.cli.layout.lines import text_table
from ray_multicluster_scheduler.cli.layout.output import PIPE_WIDTH
from ray_multicluster_scheduler.common.tables import columns
from tests.unit.cli.golden_data import STORY
from tests.unit.cli.test_folded_text import lines

TITLES = ("NAME", "VERDICT", "WHY")
ROWS = [("linux", "waits", "NO_CAPACITY: 16 CPU are not free on any one node"), ("mac", "never", "")]


def attempt(number: int, cluster: str, how: str | None, why: str) -> dict[str, object]:
    times = dict.fromkeys(("sent_at", "started_at", "ended_at"), 1794700800.0)
    return {"attempt": number, "cluster": cluster, "fence": number, **times, "ended_as": how, "sentence": why}


ATTEMPTS = [attempt(1, "centos", "WORKER_LOST", "centos lost the node on which it ran"), attempt(2, "mac", None, "")]


def test_with_room_it_is_as_ever() -> None:
    for width in (PIPE_WIDTH, 64):
        assert text_table(width)(TITLES, ROWS) == columns(TITLES, ROWS)


def test_the_last_column_goes_on_below_itself() -> None:
    assert text_table(44)(TITLES, ROWS).split("\n") == [
        "NAME   VERDICT  WHY",
        "linux  waits    NO_CAPACITY: 16 CPU are not",
        "                free on any one node",
        "mac    never",
    ]


def test_columns_without_room_are_printed_below_the_row() -> None:
    assert text_table(32)(TITLES, ROWS).split("\n") == [
        "NAME   VERDICT",
        "linux  waits",
        "    WHY: NO_CAPACITY: 16 CPU are",
        "        not free on any one node",
        "mac    never",
    ]
    assert text_table(10)(TITLES, ROWS[1:]).split("\n") == ["NAME", "mac", "    VERDICT:", "        never"]


@pytest.mark.parametrize("width", range(20, 90, 7))
def test_wide_characters_are_counted_as_wide(width: int) -> None:
    rows = [("集群一", "等待", "集群没有空闲的节点，任务正在排队等待。"), ("mac", "never", "x")]
    drawn = text_table(width)(TITLES, rows)
    assert max(map(cell_len, drawn.split("\n"))) <= width
    assert "集群没有空闲的节点，任务正在排队等待。" in "".join(drawn.split())


def explained(width: int) -> list[str]:
    return lines(explanation_text({**STORY, "attempts": ATTEMPTS}, "the service"), width)


@pytest.mark.parametrize(
    ("width", "last", "below"),
    [
        (PIPE_WIDTH, "WHY", []),
        (80, "HOW", ["WHY: centos lost the node on which it ran"]),
        (60, "ENDED", ["HOW: WORKER_LOST", "WHY: centos lost the node on which it ran", "HOW: live"]),
    ],
)
def test_attempts_of_an_item(width: int, last: str, below: list[str]) -> None:
    shown = explained(width)
    begin = shown.index("Attempts") + 1
    table = [line.strip() for line in shown[begin : shown.index("", begin)]]
    assert table[0].split()[-1] == last
    assert [line for line in table if line.startswith(("HOW", "WHY"))] == below
    assert max(map(len, shown)) <= width
