"""What makes a command slow is importing. Counting modules is steadier than a clock; `python -m bench.cli` has that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tests.unit.cli.commands import all_commands
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {
    *("aiohttp", "apsw", "asyncio", "cloudpickle", "cryptography", "fastapi", "psutil", "pydantic", "ray", "uvicorn"),
    *("prometheus_client", "yaml"),
}
COUNT = (
    "import sys; before = set(sys.modules); from ray_multicluster_scheduler.main import main; main({words!r});"
    "import json; print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)"
)
OURS = "ray_multicluster_scheduler"


def loaded_by(*words: str) -> list[str]:
    """Modules that a process has loaded which ran this."""
    code = COUNT.format(words=list(words))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stderr.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("words", "most", "ours"),
    [
        ("--help", 150, 15),
        ("version", 150, 15),
        ("task --help", 220, 43),
        ("status", 290, 50),
        ("status -o json", 230, 50),
        ("task list", 280, 43),
        ("task list -o json --limit 5", 310, 43),  # a number that is typed is converted by pydantic
        ("task show t1", 280, 44),
        ("queue", 280, 43),
        ("job list", 280, 46),
        ("clusters list", 290, 47),
    ],
)
def test_number_of_imported_modules(service: HttpService, words: str, most: int, ours: int) -> None:
    service.submit("t1")
    until(lambda: service.get("/api/v1/items/t1")["state"] == "RUNNING")
    loaded = loaded_by(*words.split())
    allowed = {"pydantic"} if "--limit" in words else set()
    assert {name.partition(".")[0] for name in loaded} & HEAVY <= allowed
    assert len(loaded) <= most
    assert sum(name.startswith(OURS) for name in loaded) <= ours


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        ("status --foo", []),
        ("status too much", []),
        ("task show", []),
        ("task", []),
        ("nonsense", ["simulate", "doctor"]),  # where one of that name may be is looked for
    ],
)
def test_a_usage_error_loads_no_other_commands(words: str, rest: list[str]) -> None:
    loaded = loaded_by(*words.split())
    assert [one for one in ("simulate", "doctor") if f"{OURS}.cli.commands.{one}" in loaded] == rest


@pytest.mark.parametrize("words", ["status --address http://127.0.0.1:9", "explain NO_CAPACITY", "status --foo"])
def test_plain_text_in_a_pipe_does_not_import_rich(words: str) -> None:
    loaded = loaded_by(*words.split())
    assert not [name for name in loaded if name.partition(".")[0] == "rich" or name.endswith(".text_table")]


COMMANDS = {words: one for words, one in all_commands().items() if words != "version"}  # that one is not lazy
ALL = [(words, option) for words, one in COMMANDS.items() for option in one.get_params(typer.Context(one))]


def test_lazy_conversion_equals_that_of_typer() -> None:
    """Every option of every command: its default, nothing at all, and what may be typed."""
    compared = 0
    for name, one in ALL:
        quick, slow = one.get_runtime_param(), type(one).get_runtime_param(one)
        assert quick is not slow, (name, one.name)
        several = one.multiple or one.nargs != 1
        typed = [["a", "b"]] if several else ["a", "json", "1", "", "table", "task", "TABLE"]
        for value in (None, one.default, *typed):
            answers = []
            for way in (quick, slow):
                try:
                    answers.append(way.coerce(value, param=one, ctx=None))
                except Exception as error:  # noqa: BLE001 - both refuse it, or none does
                    answers.append((type(error), str(error)))
            assert answers[0] == answers[1], (name, one.name, value)
            assert type(answers[0]) is type(answers[1]), (name, one.name, value)
            compared += 1
    assert compared > 1000
