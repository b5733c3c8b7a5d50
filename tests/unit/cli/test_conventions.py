"""What all commands have in common: words, times, exit codes, completion, and a service that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ray_multicluster_scheduler.cli import app as cli_app
from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments.lazy_group import load_command
from ray_multicluster_scheduler.cli.layout import output, times
from ray_multicluster_scheduler.cli.layout.table import FittingTable
from ray_multicluster_scheduler.cli.service import client
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskState
from tests.unit.cli.commands import all_commands
from tests.unit.cli.conftest import Rmcs
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

ROOT = Path(__file__).resolve().parents[3]
LAZY = cli_app.Root.lazy_commands
NEED_A_SERVICE = [
    "status",
    "task list",
    "task show x",
    "task logs x",
    "task cancel x",
    "task retry x",
    "task hold x",
    "task release x",
    "task priority x 1",
    "job submit -- true",
    "job status x",
    "job logs x",
    "job stop x",
    "job delete x",
    "job list",
    "actor list",
    "actor kill x",
    "queue",
    "queue pause --owner x",
    "queue resume --owner x",
    "clusters show x",
    "clusters check x",
    "events",
    "config log-level",
    "owner list",
    "owner show x",
    "owner set x --max-running 1",
    "pool list",
    "pool show x",
    "pool create x --quota CPU=1",
    "pool resize x --quota CPU=1",
    "pool relabel x a=b",
    "pool delete x",
    "token create x --role viewer",
    "config log-level",
    "token list",
    "token revoke x",
    "trace x.csv",
    "serving list",
    "serving status x",
    "serving scale x 2",
    "serving delete x",
]


ALL = all_commands()


class TestCommands:
    @pytest.mark.parametrize("name", LAZY)
    def test_help_in_the_list_equals_help_of_the_command(self, name: str) -> None:
        answer = load_command(name, LAZY[name]).get_short_help_str(1000)
        assert answer.rstrip(".") == LAZY[name].help.rstrip(".")

    @pytest.mark.parametrize("words", ALL)
    def test_each_has_help(self, rmcs: Rmcs, words: str) -> None:
        assert rmcs(*words.split(), "--help").code == 0

    def test_output_option_accepts_all_formats(self, rmcs: Rmcs) -> None:
        having = [words for words, command in ALL.items() if any("--output" in one.opts for one in command.params)]
        assert len(having) > 20
        for words in having:
            done = rmcs(*words.split(), "-o", "xml")
            assert done.code == 2, words
            assert all(f"'{form}'" in done.err for form in ("table", "json", "yaml")), done.err

    @pytest.mark.parametrize(
        ("words", "meant"), [("taks list", "task"), ("task cancle x", "cancel"), ("job sumbit x", "submit")]
    )
    def test_a_typo_is_answered_with_what_was_meant(self, rmcs: Rmcs, words: str, meant: str) -> None:
        done = rmcs(*words.split())
        assert done.code == 2
        assert f"'{meant}'" in done.err.partition("Did you mean")[2]

    @pytest.mark.parametrize(
        ("words", "answer"),
        [
            ("task list -o jsn", "'jsn' is not one of 'table', 'json', 'yaml'. Did you mean 'json'?"),
            ("task list -o JSNO", "Did you mean 'json'?"),
            ("plan --kind tsk", "'tsk' is not one of 'task', 'actor', 'job'. Did you mean 'task'?"),
            ("up --auth=tken", "Did you mean 'token'?"),
            ("task list -o xml", "'xml' is not one of 'table', 'json', 'yaml'.\n"),
            ("task list --limit x", "Invalid value for '--limit': expected a valid integer.\n"),
            ("events --since x", "'x' is no number of an event, and no time; write 1234, 12h or 2031-05-01T08:00.\n"),
            ("fleet up -n 99", "expected less than or equal to 16.\n"),
            ("task list --stat x", "--state"),
            ("--verion", "--version"),
        ],
    )
    def test_a_wrong_value_or_option_too(self, rmcs: Rmcs, words: str, answer: str) -> None:
        done = rmcs(*words.split())
        assert (done.code, done.out) == (2, "")
        assert answer in done.err
        assert "Value error" not in done.err

    @pytest.mark.parametrize(
        ("words", "answer"),
        [
            ("task list", "no item is known"),
            ("task list --state FAILED", "no item matches"),
            ("task list --since 1h", "no item matches"),
            ("job list", "no job is known"),
            ("actor list", "no actor is alive, or was recently"),
            ("owner list", "no owner has unfinished items, or limits"),
            ("pool list", "there are no pools"),
        ],
    )
    def test_an_empty_list_prints_the_reason(self, service: HttpService, rmcs: Rmcs, words: str, answer: str) -> None:
        done = rmcs(*words.split())
        assert (done.code, done.out.count("\n"), done.err) == (0, 1, f"rmcs: nothing to list: {answer}\n")
        done = rmcs(*words.split(), "-o", "json")
        assert (done.code, done.out, done.err) == (0, "[]\n", "")

    def test_a_cluster_that_is_not_there_is_no_empty_answer(self, service: HttpService, rmcs: Rmcs) -> None:
        for words in ("task list --cluster macc", "events --cluster macc"):
            assert "there is no cluster 'macc' now; did you mean 'mac'?" in rmcs(*words.split()).err
        assert "there is no cluster" not in rmcs("task", "list", "--cluster", "mac").err

    @pytest.mark.parametrize("words", ["plan --num-cpus 1", "job submit --num-cpus 1 -- true", "plan --num_gpus=1"])
    def test_words_of_ray_are_answered_with_ours(self, rmcs: Rmcs, words: str) -> None:
        done = rmcs(*words.split())
        assert done.code == 2
        assert "--cpus" in done.err.partition("Possible options")[2]


class TestNoService:
    @pytest.mark.parametrize("words", NEED_A_SERVICE)
    def test_error_names_how_to_start_a_service(
        self, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str
    ) -> None:
        monkeypatch.setenv("RMCS_HOME", str(tmp_path))
        done = rmcs(*words.split())
        assert (done.code, done.out) == (2, "")
        assert done.err.splitlines() == [
            "rmcs: error: No service runs here.",
            "What to do: start one with `rmcs up`, or give its --address",
        ]

    @pytest.mark.parametrize(
        ("address", "code", "answer"),
        [("http://127.0.0.1:9", 1, "does not answer: Connection refused"), ("ftp://x", 2, "not the address")],
    )
    def test_one_that_is_not_there(self, rmcs: Rmcs, address: str, code: int, answer: str) -> None:
        done = rmcs("task", "list", "--address", address)
        assert (done.code, done.out) == (code, "")
        assert answer in done.err

    def test_something_else_listens_there(self, service: HttpService) -> None:
        with pytest.raises(ConfigurationError, match="is not sent to"):
            _connect("http://example.org")

    def test_it_answers_no_json(self, service: HttpService) -> None:
        with pytest.raises(Exception, match="check that this is the address"):
            _connect(service.address).get("/metrics")


def _connect(address: str) -> client.Service:
    return client.connect(address)


class TestPipes:
    """A reader of the first line only: `rmcs events | head -1` ends, and says nothing of that."""

    @pytest.mark.parametrize(
        "words",
        [
            "events",
            "events -f --since 0",
            "events -o json",
            "task list",
            "task logs t1",
            "task cancel t1",
            "status",
            "status --watch -o json",
            "queue",
            "clusters list",
            "config show",
            "token list",
            "explain NO_CAPACITY",
            "version",
            "--help",
        ],
    )
    def test_exit_code_if_the_pipe_is_closed(self, service: HttpService, words: str) -> None:
        service.submit("t1")
        until(lambda: service.get("/api/v1/items/t1")["state"] == "RUNNING")
        runtime = service.plane.runtime
        runtime.call_and_wait(lambda: runtime.collector.output("mac", "t1", 1, "stdout", "a line\n"))
        ours, theirs = os.pipe()
        os.close(ours)
        command = [sys.executable, "-m", "ray_multicluster_scheduler", *words.split()]
        done = subprocess.run(command, cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=60)
        os.close(theirs)
        assert done.returncode == exit_codes.BROKEN_PIPE
        assert [line for line in done.stderr.splitlines() if not line.startswith("rmcs: ")] == []


class TestTimes:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(0, "0s"), (59, "59s"), (90, "90s"), (5400, "90m"), (7200, "2h"), (200_000, "2d"), (-3, "0s")],
    )
    def test_length(self, seconds: float, text: str) -> None:
        assert times.duration(seconds) == text

    def test_ago(self) -> None:
        assert (times.ago(None, 5), times.ago(100, 280), times.ago(460, 100)) == ("–", "3m ago", "in 6m")

    @pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("2h", 7200), ("x", None), ("-1d", None), ("", None)])
    def test_seconds_of(self, text: str, seconds: float | None) -> None:
        assert times.parse_duration(text) == seconds

    def test_moments_are_known_by_their_names_and_sizes(self) -> None:
        data = {"at": 1794700800.0, "x": [{"ended_at": None, "sent_at": 1794700800}], "look_at": 3.0, "number": 2e9}
        assert times.with_iso_times(data) == {
            "at": "2026-11-15T00:00:00.000Z",
            "x": [{"ended_at": None, "sent_at": "2026-11-15T00:00:00.000Z"}],
            "look_at": 3.0,
            "number": 2e9,
        }


def test_exit_codes_by_state() -> None:
    over = {str(state) for state in TaskState if state.terminal}
    assert {state for state in map(str, TaskState) if exit_codes.is_over(state)} == over
    codes = {
        state: exit_codes.exit_code_of(state) for state in ("SUCCEEDED", "FAILED", "RUNNING", "CANCELLED", "EXPIRED")
    }
    assert list(codes.values()) == [0, 100, 101, 103, 102]


def _environ() -> dict[str, str]:
    return dict(os.environ)


class TestSpinner:
    def test_on_a_terminal_it_spins_with_the_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import io

        from rich.console import Console

        screen = Console(file=io.StringIO(), force_terminal=True, width=80)
        monkeypatch.setattr(output, "is_terminal", lambda **_: True)
        monkeypatch.setattr(output, "console", lambda **_: screen)
        with output.ProgressLine() as progress:
            progress.show("t1 is QUEUED: mac is full")
            progress.show("t1 is QUEUED: mac is full")
        assert "mac is full" in screen.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO of above

    def test_elsewhere_it_does_not_count_down(self, capsys: pytest.CaptureFixture[str]) -> None:
        with output.ProgressLine() as progress:
            for left in ("40 s", "39 s", "38.5 s"):
                progress.show(f"t1 is QUEUED: the next in {left}")
            progress.show("t1 is QUEUED: mac is full")
        assert capsys.readouterr().err.splitlines() == [
            "rmcs: t1 is QUEUED: the next in 40 s",
            "rmcs: t1 is QUEUED: mac is full",
        ]


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (80, "nightly-2026-11-15  job   RUNNING  a long sentence about why it waits"),
        (50, "nightly-2026-11-15  job   RUNNING  a long sentenc…"),
        (42, "nightly-2026-11-15  RUNNING  a long sente…"),
    ],
)
def test_a_table_that_is_too_wide_cuts_and_drops_what_matters_least(width: int, line: str) -> None:
    import io

    from rich.console import Console

    screen = Console(file=io.StringIO(), width=width)
    rows = [("nightly-2026-11-15", "job", "RUNNING", "a long sentence about why it waits")]
    screen.print(FittingTable(("ID", "KIND", "STATE", "WHY"), rows, cut=("WHY",), drop=("KIND",)))
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]  # it is the StringIO of above
    assert len(lines) == 2
    assert lines[1].rstrip() == line
