"""Our log: silent as a library, one line per record when asked for, with what identifies an item."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ray_multicluster_scheduler.common.logging import ROOT, configure, get_logger, is_configured


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger(ROOT)
    saved = (root.level, root.propagate, list(root.handlers))
    yield
    root.level, root.propagate, root.handlers = saved[0], saved[1], saved[2]
    root.setLevel(saved[0])


def test_a_library_says_nothing_by_itself() -> None:
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


def test_whether_somebody_asked_for_it() -> None:
    assert not is_configured()
    configure(stream=io.StringIO())
    assert is_configured()
