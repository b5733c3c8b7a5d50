"""What `rmcs … --help` says: nothing is cut, everything has an example, and the same thing has one name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.app import app
from ray_multicluster_scheduler.cli.arguments.examples import EXAMPLES
from ray_multicluster_scheduler.cli.arguments.lazy_group import LazyGroup, load_all
from ray_multicluster_scheduler.common.model.submit_options import options_of
from tests.support.command_check import check_command
from tests.unit.cli.commands import all_commands
from tests.unit.cli.conftest import Rmcs

ROOT = Path(__file__).resolve().parents[3]

ALL = all_commands()
OTHER_NAMES = {
    r"\btry\b|\btries\b": "attempt",
    r"\bslots?\b": "place",
    r"place in the queue": "position",
    r"looked for as the library does": "where a clusters.yaml is looked for",
    r"may be given again": "may be repeated",
    r"at the most": "at most",
    r"Ends with \d": "Exit code",
    r"\breason code\b": "code",
}
"""What has another name with us."""


def groups() -> Iterator[str]:
    root = typer.main.get_group(app)
    assert isinstance(root, LazyGroup)
    yield ""
    yield from (name for name, one in load_all(root).commands.items() if hasattr(one, "commands"))


@pytest.fixture(autouse=True)
def _ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("words", [*groups()])
def test_no_line_of_a_list_is_cut(rmcs: Rmcs, words: str) -> None:
    listed = rmcs(*words.split(), "--help").out.partition("\nCommands:\n")[2]
    assert listed
    assert [line for line in listed.splitlines() if line.endswith("...")] == []


@pytest.mark.parametrize("words", ALL)
class TestEach:
    def test_it_has_an_example_that_works(self, rmcs: Rmcs, words: str) -> None:
        shown = rmcs(*words.split(), "--help").out
        assert EXAMPLES[words]
        for one in EXAMPLES[words]:
            assert one.startswith(f"rmcs {words}")
            assert f"\n    {one}\n" in shown
            check_command(shlex.split(one)[1:])

    def test_it_fits(self, rmcs: Rmcs, words: str) -> None:
        shown = rmcs(*words.split(), "--help").out
        assert [line for line in shown.splitlines() if len(line) > 80] == []
        assert "\b" not in shown

    def test_one_name_for_one_thing(self, rmcs: Rmcs, words: str) -> None:
        shown = " ".join(rmcs(*words.split(), "--help").out.split())
        assert {found[0]: ours for pattern, ours in OTHER_NAMES.items() for found in re.finditer(pattern, shown)} == {}

    def test_help_is_a_sentence(self, rmcs: Rmcs, words: str) -> None:
        """A verb first, and a full stop."""
        first = str(ALL[words].help).partition("\n")[0]
        assert re.fullmatch(r"[A-Z][a-z]+ .*\.", first), first

    def test_every_option_has_help(self, words: str) -> None:
        silent = [one.name for one in ALL[words].params if not section_of(one)]
        assert silent == []
        assert [section_of(one) for one in ALL[words].params if not re.match(r"[A-Z`0-9\"]", section_of(one))] == []


def section_of(option: Any) -> str:
    """An example, such as NAME=4x{CPU:16}, comes first where it explains more than words."""
    output = str(option.help or "")
    return output[:1].upper() + output[1:] if output.startswith(("none", "viewer", "any:")) else output


@pytest.mark.parametrize(
    "option",
    [
        *("--address", "--output", "--reason", "--gpus", "--memory", "--resource", "--tag", "--require-tag", "--every"),
        *("--preferred-cluster", "--verify", "--headers", "--verbose", "--follow", "--kind", "--state"),
    ],
)
def test_same_option_has_the_same_help(option: str) -> None:
    """As far as it is the same for all commands that have it."""
    having = {words: one for words, command in ALL.items() for one in command.params if option in one.opts}
    known = {
        ("--state", "serving up"),
        ("--kind", "plan"),
        ("--state", "task list"),
        ("--state", "events"),
        ("--follow", "events"),
    }
    output = {one.help for words, one in having.items() if (option, words) not in known}
    assert len(output) == 1, having


@pytest.mark.parametrize(
    ("flag", "keyword"),
    [
        ("--priority", "priority"),
        ("--retries", "retries"),
        ("--tag", "tags"),
        ("--name", "name"),
        ("--label", "labels"),
        ("--pool", "pool"),
        ("--min-runtime", "min_runtime_s"),
    ],
)
def test_submit_options_are_as_the_fields_are_defined(flag: str, keyword: str) -> None:
    (option,) = (one for one in ALL["job submit"].params if flag in one.opts)
    field = options_of("job")[keyword]
    assert field.values is not None
    assert option.help.startswith(field.spec.doc.rstrip("."))
    bounded = getattr(option, "type", option)  # of Click, or of a newer Typer
    limits = getattr(bounded, "min", None), getattr(bounded, "max", None)
    assert limits == (field.values.ge, field.values.le)


def test_all_examples_are_of_commands_that_there_are() -> None:
    assert sorted(EXAMPLES) == sorted(ALL)


def test_exit_codes_have_the_same_words_everywhere(rmcs: Rmcs) -> None:
    """In docs/cli.md, in `rmcs --help`, and where they are."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    table = page.partition("| exit code | |\n")[2].partition("\n\n")[0]
    documented = re.findall(r"^\| (\d+) \| (.+) \|$", table, re.MULTILINE)
    reported = re.findall(r"^ +(\d+)  (.+)$", rmcs("--help").out.partition("Exit codes:")[2], re.MULTILINE)
    assert reported == documented
    known = [value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)]
    assert [int(code) for code, _ in reported] == sorted(known)
