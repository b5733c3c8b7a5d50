"""The tables and the plot of results."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from ray_multicluster_scheduler.simulation import Comparison, plot, simulate
from ray_multicluster_scheduler.simulation.report.report_text import format_duration, rows
from ray_multicluster_scheduler.simulation.report.result import jain, percentile, spread
from tests.unit.simulation.simulated_runs import exact, fleet, item

WHERE = fleet(exact("a", "{CPU:2}"), exact("b<&>", "{CPU:1}@2"))
RESULT = simulate(WHERE, [item(0, 1, 10, owner=owner) for owner in ("ann", "ann", "bob", "bob")])


def svg(text: str) -> list[ElementTree.Element]:
    start = text.index("<body>")
    return list(ElementTree.fromstring(text[start : text.index("</body>") + 7]).iter("svg"))


def test_a_plot_has_a_strip_for_each_cluster_and_the_queue() -> None:
    [picture] = svg(plot(RESULT, title="a <title>"))
    names = [one.text for one in picture.iter("text")]
    assert names[:3] == ["a", "b<&>", "queued (0–1)"]
    assert [one.get("class") for one in picture.iter("path")] == ["use", "use", "queue"]


def test_a_plot_is_self_contained() -> None:
    text = plot(RESULT)
    assert not any(word in text for word in ("<script", "http://", "https://", "@import", "url("))


def test_runs_stand_below_each_other_on_one_axis() -> None:
    slow = simulate(fleet(exact("a", "{CPU:1}")), [item(0, 1, 10) for _ in range(4)])
    text = plot(Comparison({"two clusters": RESULT, "one": slow}))
    assert len(svg(text)) == 2
    assert text.index("two clusters") < text.index("<h2>one")
    assert text.count("40.0 s</text>") == 2  # the end of the axis in both


def test_the_table_names_every_figure() -> None:
    table = {row[0]: row[1:] for row in rows({"x": RESULT})}
    assert table["makespan"] == ["10.0 s"]
    assert table["wait p95"] == ["5 s"]
    assert table["use of a"] == ["100% CPU; 2 items"]
    assert table["  owner bob"] == ["2.5 s / 0 s / 5 s / 5 s"]
    assert "  priority 0" not in table  # all of them have it
    assert table["prefetched / recalled"] == ["0 / 0"]


def test_fleets_of_different_clusters_side_by_side() -> None:
    other = simulate(fleet(exact("c", "{CPU:1}")), [item(0, 1, 10)])
    table = {row[0]: row[1:] for row in rows({"x": RESULT, "y": other})}
    assert table["use of a"] == ["100% CPU; 2 items", "–"]
    assert table["use of c"] == ["–", "100% CPU; 1 item"]
    assert table["  owner ann"][1] == "–"


@pytest.mark.parametrize(
    ("value", "output"), [(None, "–"), (0.005, "0.005 s"), (12.34, "12.3 s"), (600, "10.0 min"), (9000, "2.5 h")]
)
def test_seconds(value: float | None, output: str) -> None:
    assert format_duration(value) == output


def test_percentiles_are_observed_values() -> None:
    assert [percentile([1, 2, 3, 4], share) for share in (0.0, 0.25, 0.5, 0.51, 1.0)] == [1, 1, 2, 3, 4]
    assert spread([]) == {"count": 0, "mean": None, "p50": None, "p95": None, "p99": None, "max": None}


def test_jain() -> None:
    assert (jain([2, 2, 2]), jain([1, 0, 0, 0]), jain([0, 0])) == (1, 0.25, None)
