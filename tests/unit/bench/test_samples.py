"""Profiles: what py-spy wrote is read in full, and shares are of what was busy."""

from __future__ import annotations

import pytest

from bench._samples import parse, summarise, text_of

OURS = "/home/x/ray_multicluster_scheduler/ray_multicluster_scheduler"
LINES = f"""\
thread (17): MainThread;main (/x/p/prog.py:1);Runtime.submit ({OURS}/app/runtime.py:9) 20
thread (17): MainThread;main (/x/p/prog.py:1);Runtime.submit ({OURS}/app/runtime.py:9);dumps (/v/json/__init__.py:3) 10
thread (17): MainThread;main (/x/p/prog.py:1);Condition.wait (/v/lib/python3.11/threading.py:320) 70
thread (0x2A): a; b;run (/v/site-packages/aiohttp/client.py:5) 50
thread (9);EpollSelector.select (/v/lib/python3.11/selectors.py:452) 100
"""


def test_a_line_is_a_thread_its_stack_and_a_count() -> None:
    first, *_, fourth, last = parse(LINES)
    assert (first.thread, first.count) == ("MainThread", 20)
    assert [str(frame) for frame in first.frames] == [
        "main (p/prog.py)",
        "Runtime.submit (ray_multicluster_scheduler/app/runtime.py)",
    ]
    assert (fourth.thread, str(fourth.frames[0])) == ("a; b", "run (aiohttp/client.py)")
    assert last.thread == "thread 9"


@pytest.mark.parametrize("line", ["Error: no such process", "thread (1): x;f (a.py:1)", "f (a.py:1) 3"])
def test_invalid_profile_is_rejected(line: str) -> None:
    with pytest.raises(ValueError, match="raw format"):
        parse(line)


def test_shares_are_of_the_busy_time_of_each_thread_the_busiest_first() -> None:
    summary = summarise(LINES, ticks=100)
    busy = {thread["thread"]: thread["busy_percent"] for thread in summary["threads"]}
    assert busy == {"a; b": 50.0, "MainThread": 30.0, "thread 9": 0.0}
    assert list(busy) == ["a; b", "MainThread", "thread 9"]
    main = summary["threads"][1]
    assert main["files"] == [("ray_multicluster_scheduler/app/runtime.py", 100.0)], "json works for our file"
    assert main["functions"] == [
        ("Runtime.submit (ray_multicluster_scheduler/app/runtime.py)", 66.7),
        ("dumps (json/__init__.py)", 33.3),
    ]
    assert summary["threads"][0]["files"] == [("(none of ours)", 100.0)]
    assert summary["threads"][2]["functions"] == []


@pytest.mark.parametrize(
    ("leaf", "busy"),
    [
        ("_Gate.wait (/x/ray_multicluster_scheduler/app/item.py:1)", 0.0),
        ("_worker (/v/lib/concurrent/futures/thread.py:81)", 0.0),
        ("wait_for_all (/x/y/z.py:1)", 50.0),
        ("_worker (/x/y/z.py:1)", 50.0),
    ],
)
def test_a_thread_that_waits_is_not_busy(leaf: str, busy: float) -> None:
    assert summarise(f"thread (1): t;main (/a/b.py:1);{leaf} 50", ticks=100)["threads"][0]["busy_percent"] == busy


def test_only_the_top_is_listed() -> None:
    text = "\n".join(f"thread (1): t;f{n} (a/b.py:1) {n}" for n in range(1, 30))
    functions = summarise(text, ticks=1000, top=3)["threads"][0]["functions"]
    assert [name for name, _ in functions] == ["f29 (a/b.py)", "f28 (a/b.py)", "f27 (a/b.py)"]


def test_for_a_person_threads_that_only_waited_are_left_out() -> None:
    text = text_of(summarise(LINES, ticks=100))
    assert "a; b: busy 50 %" in text
    assert "thread 9" not in text
    assert text_of(summarise("", ticks=100)) == "  idle all the time"
