"""Traces: round trips, and errors that name file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.simulation import Item, Synthetic, read_trace, write_trace

HEAD = "submit,shape,run\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


def test_three_columns_are_enough(path: Path) -> None:
    path.write_text(HEAD + "1.5,CPU=2;memory=1GiB,90s\n0,,2min\n\n")
    assert list(read_trace(path)) == [Item(0, {}, 120), Item(1.5, {"CPU": 2.0, "memory": 1024.0**3}, 90)]


def test_all_columns_in_any_order(path: Path) -> None:
    path.write_text(
        "kind,owner,priority,tags,function,members,fails,outcome,run,shape,submit\n"
        "gang,ann,-1,a;!b;c,train,4,1,cancelled,1h,GPU=1,0\n"
    )
    assert list(read_trace(path)) == [
        Item(
            0,
            {"GPU": 1.0},
            3600,
            "ann",
            -1,
            ("a", "c"),
            ("b",),
            "gang",
            "train",
            members=4,
            fails=1,
            outcome="cancelled",
        )
    ]


def test_priorities_may_have_a_fraction(path: Path) -> None:
    path.write_text("submit,shape,run,priority\n0,CPU=1,1,2.5\n1,CPU=1,1,5.0\n2,CPU=1,1,\n")
    items = list(read_trace(path))
    assert [str(one.priority) for one in items] == ["2.5", "5", "0"]
    write_trace(path, items)
    assert [line.split(",")[4] for line in path.read_text().splitlines()] == ["priority", "2.5", "5", "0"]
    assert list(read_trace(path)) == items


def test_a_trace_survives_a_round_trip(path: Path) -> None:
    recipe = (
        "items=200 over=1h run=lognormal:60,2 sizes=0.5,1,2 memory=3GiB gpus=0.2:1 owners=ann,bob priorities=-1,0,5"
    )
    made = Synthetic.parse(f"{recipe} kinds=task,job,gang,actor tags=x:0.5 require=y:0.5 fails=0.3").generate(4)
    write_trace(path, made)
    assert list(read_trace(path)) == list(made)


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("", "line 1: the trace has no column 'submit'"),
        ("submit,shape,run,nodes\n", "line 1: the trace has an unknown column 'nodes'"),
        ("submit,shape,run,run\n", "line 1: the trace names a column twice"),
        (HEAD, "has no items"),
        (HEAD + "0,CPU=1,1\n0,CPU=1\n", "line 3: has 2 cells, and the first line names 3 columns"),
        (HEAD + "soon,CPU=1,1\n", "line 2: column submit: 'soon' is not a time"),
        (HEAD + "0,CPU=1,-3\n", "line 2: column run: '-3' is not a time"),
        (HEAD + "1731700000,CPU=1,60\n", "line 2: column submit: '1731700000' is more than a year"),
        (HEAD + "0,CPU=1,1000000d\n", "line 2: column run: '1000000d' is more than a year"),
        (HEAD + "0,CPU,1\n", "line 2: column shape: 'CPU' is not name:amount"),
        (HEAD + "0,CPU=x,1\n", "line 2: column shape: 'CPU=x': 'x' is not a number"),
        (HEAD + "0,CPU=-1,1\n", "line 2: column shape: the amounts['CPU'] is -1.0"),
        (HEAD + "0,CPU=1;CPU=2,1\n", "line 2: column shape: 'CPU=2' is given twice"),
        ("submit,shape,run,kind\n0,CPU=1,1,batch\n", "line 2: column kind: 'batch' is not one of task, job"),
        ("submit,shape,run,outcome\n0,CPU=1,1,stopped\n", "line 2: column outcome: 'stopped' is not one of succeeded"),
        ("submit,shape,run,priority\n0,CPU=1,1,high\n", "line 2: column priority: 'high' is not a number"),
        ("submit,shape,run,priority\n0,CPU=1,1,nan\n", "line 2: column priority: 'nan' is not a number"),
        ("submit,shape,run,priority\n0,CPU=1,1,-inf\n", "line 2: column priority: '-inf' is not a number"),
        ("submit,shape,run,fails\n0,CPU=1,1,x\n", "line 2: column fails: 'x' is not a whole number"),
        ("submit,shape,run,members\n0,CPU=1,1,0\n", "line 2: column members: 0 is less than 1"),
    ],
)
def test_an_error_names_its_place(path: Path, text: str, output: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_trace(path)
    assert str(path) in caught.value.message
    assert output in caught.value.message


def test_a_missing_file(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_trace(path)


def test_a_file_that_is_not_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_trace(path)
