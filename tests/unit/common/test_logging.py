"""Our log: silent as a library, one line per record when asked for, with what identifies an item."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ray_multicluster_scheduler.common.logging import (
    FLUSH_INTERVAL_S,
    ROOT,
    batched_lines,
    configure,
    get_logger,
    is_configured,
)


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger(ROOT)
    saved = (root.level, root.propagate, list(root.handlers))
    yield
    root.level, root.propagate, root.handlers = saved[0], saved[1], saved[2]
    root.setLevel(saved[0])


def test_a_library_logs_nothing_by_itself() -> None:
    code = "from ray_multicluster_scheduler.common.logging import get_logger; get_logger('x').error('boom')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_text_shows_the_known_extras_in_order() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    get_logger("scheduler").info("placed", extra={"cluster": "mac", "id": "t-1", "attempt": 2, "other": "x"})
    line = stream.getvalue()
    assert line.endswith("Z INFO placed id=t-1 attempt=2 cluster=mac\n")


def test_json_is_one_object_per_line() -> None:
    stream = io.StringIO()
    configure(json=True, stream=stream)
    log = get_logger(f"{ROOT}.app")
    log.warning("größer\nals %d", 3, extra={"reason": "no_room"})
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("failed")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert first["message"] == "größer\nals 3"
    assert (first["level"], first["logger"], first["reason"]) == ("WARNING", f"{ROOT}.app", "no_room")
    assert "id" not in first
    assert "ValueError: bad" in second["traceback"]


def test_levels_below_the_chosen_one_are_left_out() -> None:
    stream = io.StringIO()
    configure("WARNING", stream=stream)
    get_logger("x").info("quiet")
    get_logger("x").warning("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_configuring_again_replaces_and_leaves_other_handlers_alone() -> None:
    theirs = logging.NullHandler()
    logging.getLogger(ROOT).addHandler(theirs)
    first, second = io.StringIO(), io.StringIO()
    configure(stream=first)
    configure(stream=second)
    get_logger("x").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1
    assert theirs in logging.getLogger(ROOT).handlers


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        configure("LOUD")


def test_whether_it_is_configured() -> None:
    assert not is_configured()
    configure(stream=io.StringIO())
    assert is_configured()


def test_a_service_writes_its_lines_together_and_a_warning_at_once() -> None:
    stream = _Counting()
    configure(stream=stream)
    log = get_logger("x")
    with batched_lines():
        for number in range(100):
            log.info("line %d", number)
        assert stream.writes < 50  # the machine may be slow, but not that slow
        log.warning("look here")
        lines = stream.getvalue().splitlines()
        assert [line.partition(" INFO ")[2] for line in lines[:100]] == [f"line {number}" for number in range(100)]
        assert lines[100].endswith("WARNING look here")
        log.info("and on")
        deadline = time.monotonic() + 30
        while "and on" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(FLUSH_INTERVAL_S / 5)
        assert "and on" in stream.getvalue()
        log.info("the last one")
    assert stream.getvalue().endswith("the last one\n")
    log.info("as before")
    assert stream.getvalue().endswith("as before\n")


def test_what_was_gathered_is_written_when_the_process_ends() -> None:
    code = (
        "from ray_multicluster_scheduler.common.logging import configure, get_logger, batched_lines\n"
        "configure()\n"
        "batched_lines().__enter__()\n"
        "get_logger('x').info('goodbye')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.endswith("INFO goodbye\n")


class _Counting(io.StringIO):
    """Counts how often it is written to."""

    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        return super().write(text)


class Broken(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_a_log_that_cannot_be_written_fails_no_caller() -> None:
    configure("INFO", stream=Broken())
    log = get_logger("tests.broken")
    with batched_lines():
        for _ in range(100):
            log.info("nobody reads this")
        log.warning("nor this")
        handler = next(one for one in logging.getLogger(ROOT).handlers if hasattr(one, "_lines"))
        assert handler._lines == []
