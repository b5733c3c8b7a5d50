"""`rmcs`: answers at once, and a user's mistake is one message and an exit code, never a traceback."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import ray_multicluster_scheduler
from ray_multicluster_scheduler.cli import app as cli_app
from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError
from ray_multicluster_scheduler.main import main


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """`rmcs boom` raises what the test asks for; the real commands stay."""
    commands = list(cli_app.app.registered_commands)
    monkeypatch.setattr(cli_app.app, "registered_commands", commands)

    @cli_app.app.command("boom")
    def boom() -> None:
        raise request.param


@pytest.mark.parametrize(
    ("failing", "code"),
    [
        (ConfigurationError("clusters.yaml: no key `nmae`.", next_step="write `name`"), 2),
        (ClusterConnectionError("mac does not answer.", cluster="mac", next_step="start it"), 1),
    ],
    indirect=["failing"],
)
def test_an_error_is_a_message_a_next_step_and_where_to_read_on(
    failing: None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["boom"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second, *third = captured.err.splitlines()
    assert first.startswith("rmcs: error: ")
    assert second.startswith("What to do: ")
    assert third == ([] if code == 2 else ["More: rmcs explain CLUSTER_CONNECTION"])


@pytest.mark.parametrize(
    "failing", [ClusterConnectionError("mac says \x1b[2Jboo\nand more.", next_step="close\x07 it")], indirect=True
)
def test_words_of_others_move_no_cursor(failing: None, capsys: pytest.CaptureFixture[str]) -> None:
    main(["boom"])
    assert capsys.readouterr().err.splitlines()[:3] == [
        "rmcs: error: mac says \\x1b[2Jboo",
        "and more.",
        "What to do: close\\x07 it",
    ]


@pytest.mark.parametrize("failing", [KeyboardInterrupt()], indirect=True)
def test_ctrl_c_is_one_line_and_130(failing: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["boom"]) == 130
    assert capsys.readouterr().err.strip() == "rmcs: interrupted."


def test_ctrl_c_while_it_is_still_loading_is_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Loading(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, cli_app.__name__, Loading(cli_app.__name__))
    assert main(["version"]) == 130
    assert capsys.readouterr() == ("", "rmcs: interrupted.\n")


@pytest.mark.parametrize("failing", [ZeroDivisionError("ours")], indirect=True)
def test_a_mistake_of_ours_keeps_its_traceback(failing: None) -> None:
    with pytest.raises(ZeroDivisionError):
        main(["boom"])


@pytest.mark.parametrize("word", ["version", "--version", "-V"])
def test_version(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out.strip() == ray_multicluster_scheduler.__version__


@pytest.mark.parametrize("arguments", [["no-such-command"], ["clusters", "-o", "xml"]])
def test_a_wrong_command_line_is_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert arguments[-1] in capsys.readouterr().err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in ("clusters", "demo", "fleet", "version"):
        assert command in text
