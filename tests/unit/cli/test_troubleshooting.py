"""`rmcs explain CODE`, and errors that say which code to ask for."""

from __future__ import annotations

import json
import re

import pytest

from ray_multicluster_scheduler.cli.troubleshooting import _plain, _synonyms, codes, section_of
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.main import main


def test_a_code_is_explained_without_any_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "NO_CAPACITY"]) == 0
    output = capsys.readouterr().out
    assert "freed on one node." in output
    assert "###" not in output


def test_links_are_shown_as_their_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "STORE", "-o", "json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["code"] == "STORE"
    assert "](" not in output["text"]


@pytest.mark.parametrize("code", codes())
def test_programs_get_plain_sentences(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code, "-o", "json"]) == 0
    text = json.loads(capsys.readouterr().out)["text"]
    assert "*" not in text
    assert "\n" not in re.sub(r"\n(\n|- )", "", text), "only between paragraphs and items of a list"


def test_lists_and_examples_keep_their_lines() -> None:
    kept = "- one\n- two\n\n```sh\nrmcs up *.yaml\n\nrmcs down *.yaml\n```"
    text = f"Some *words*\nthat **go on**, 2 * 3 `*x*`:\n\n{kept}\n\nThe\nend.\n"
    assert _plain(text) == f"Some words that go on, 2 * 3 `*x*`:\n\n{kept}\n\nThe end."


def test_an_unknown_code_is_treated_as_an_id(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("RMCS_HOME", str(tmp_path))
    assert main(["explain", "NO_SUCH_CODE"]) == 102
    assert "no program of yours" in capsys.readouterr().err
    assert main(["explain", "NO_CAPACTY"]) == 102
    output = capsys.readouterr().err
    assert "There is a code NO_CAPACITY" in output
    assert "What to do: `rmcs explain NO_CAPACITY`" in output
    assert main(["explain", "no_capacity"]) == 0
    assert capsys.readouterr().out.strip()


def test_an_error_names_its_code(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMCS_TOKEN", "x")
    assert main(["task", "list", "--address", "http://127.0.0.1:9"]) == 1
    assert "More: rmcs explain SERVICE_UNAVAILABLE" in capsys.readouterr().err


def test_a_configuration_error_has_no_extra_help(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    assert main(["clusters", "--config", f"{tmp_path}/none.yaml"]) == 2
    assert "More:" not in capsys.readouterr().err


def test_another_word_for_a_code_is_answered_with_what_may_be_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "TASK_FAILED"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("TASK_FAILED is no code; USER_ERROR or ")
    assert "\nUSER_ERROR: " in output


def test_other_words_are_no_codes_and_lead_to_some() -> None:
    known = set(codes())
    assert known.isdisjoint(_synonyms())
    assert {one for meant in _synonyms().values() for one in meant} <= known


@pytest.mark.parametrize("state", TaskState)
def test_every_state_has_a_section(state: TaskState) -> None:
    assert section_of(state)


def test_a_job_with_missing_files_gets_help() -> None:
    output = section_of("JOB_FAILED") or ""
    for word in ("can't open file", "ModuleNotFoundError", "--working-dir .", "working_dir", "pip"):
        assert word in output
