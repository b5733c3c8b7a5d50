"""Text of users begins no line of ours, and moves no cursor."""

from __future__ import annotations

import io
import json
import logging

import pytest

from ray_multicluster_scheduler.cli.layout.output import console, notify, plain_table
from ray_multicluster_scheduler.common import logging as ours
from ray_multicluster_scheduler.common.control_characters import check_identifiers, escaped, escaped_lines, is_one_line
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import ActorDescription, TaskDescription
from ray_multicluster_scheduler.control_plane.runtime.explanation_text import explanation_text

FORGED = "x\n2026-01-01T00:00:00.000Z INFO action=revoke\x1b[2J\x00\x9b\u202e"


def test_what_is_spelt_out() -> None:
    assert escaped(FORGED) == "x\\n2026-01-01T00:00:00.000Z INFO action=revoke\\x1b[2J\\x00\\x9b\\u202e"
    assert escaped_lines("a\n\tb\x1b\r") == "a\n\tb\\x1b\\r"
    assert escaped("plain, größer, 中文 🙂") == "plain, größer, 中文 🙂"
    assert is_one_line("größer 🙂\u200d")
    assert not any(is_one_line(one) for one in ("a\nb", "\x1b", "\x00", "\x7f", "\x85", "\u2028", "a\u202eb"))


@pytest.mark.parametrize("as_json", [False, True])
def test_a_log_has_a_line_for_each_record(as_json: bool) -> None:
    stream = io.StringIO()
    ours.configure(json=as_json, stream=stream)
    try:
        ours.get_logger("x").info("placed %s", FORGED, extra={"id": FORGED, "reason": "a\rb"})
        try:
            raise ValueError(FORGED)
        except ValueError:
            ours.get_logger("x").exception("failed")
    finally:
        root = logging.getLogger(ours.ROOT)
        root.removeHandler(next(one for one in root.handlers if isinstance(one, ours._BufferedHandler)))
        root.propagate = True
    text = stream.getvalue()
    assert not set("\x1b\x00\x9b\r\u202e") & set(text)
    lines = text.splitlines()
    if as_json:
        assert len(lines) == 2
        assert json.loads(lines[0])["id"] == FORGED, "it is what it was for its reader"
    else:
        assert len([one for one in lines if one.startswith("20")]) == 2
        assert all(one.startswith("  ") for one in lines[2:])


@pytest.mark.parametrize(
    "values",
    [
        {"id": "a\nb"},
        {"owner": "a\x1bb"},
        {"idempotency_key": "a\x00"},
        {"tags": ("ok", "a\r")},
        {"preferred_cluster": "a\n"},
        {"kind": "actor", "actor": ActorDescription(ray_name="a", public_name="b\n")},
        {"kind": "actor", "actor": ActorDescription(ray_name="a\u2028")},
    ],
)
def test_what_an_item_is_found_by_is_one_line(values: dict[str, object]) -> None:
    task = TaskDescription(**{"id": "t", "kind": "task", "name": "a\nname", **values})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="control characters") as raised:
        check_identifiers(task)
    assert is_one_line(str(raised.value))


def test_its_name_may_be_a_command_of_several_lines() -> None:
    check_identifiers(TaskDescription(id="t", kind="task", name="a\nb", owner="größer 🙂"))


def test_commands_print_it_spelt_out(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(plain_table(("NAME",), [[FORGED]]))
    notify(f"{FORGED}")
    explanation = {
        "id": "t",
        "kind": "task",
        "name": FORGED,
        "state": "FAILED",
        "code": "X",
        "sentence": f"a\n{FORGED}",
    }
    print(explanation_text(explanation))
    output = capsys.readouterr().out
    assert not set("\x1b\x00\x9b\u202e") & set(output)
    assert "action=revoke\\x1b[2J" in output
    text = explanation_text(explanation)
    assert [one[:2] for one in text.splitlines()] == ["t ", "  ", "  ", "  "]
