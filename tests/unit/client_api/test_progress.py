"""Progress bars: on a terminal or in a notebook, on stderr only; they delay nothing."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.executor.executor import FleetExecutor
from ray_multicluster_scheduler.app.client_api.handles import progress
from ray_multicluster_scheduler.app.client_api.handles.collecting import get, wait
from ray_multicluster_scheduler.app.client_api.handles.handle import PartHandle
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import ConfigurationError, TaskTimeoutError
from tests.unit.client_api.test_collecting import fail, handle, succeed
from tests.unit.service.http_service import HttpService

pytestmark = pytest.mark.usefixtures("leak_check")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Without tqdm, whether it is installed or not. A test makes it its stderr: pytest puts its own there before."""
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


class FakeTqdm:
    """As much of it as is used."""

    made: list[FakeTqdm]

    def __init__(self, **output: Any) -> None:
        self.options, self.n, self.closed = output, 0, False
        self.postfix: dict[str, int] = {}
        self.made.append(self)

    def set_postfix(self, words: dict[str, int], refresh: bool) -> None:
        self.postfix = words

    def update(self, by: int) -> None:
        self.n += by

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[FakeTqdm]:
    """Those that a tqdm which is installed draws in a notebook."""
    module = ModuleType("tqdm.auto")
    module.tqdm = FakeTqdm  # type: ignore[attr-defined]  # a module has what one puts there
    monkeypatch.setitem(sys.modules, "tqdm", ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    FakeTqdm.made = []
    return FakeTqdm.made


def later(do: Callable[[], object]) -> None:
    timer = threading.Timer(0.05, do)
    timer.start()


def test_get_draws_on_stderr_and_says_nothing_on_stdout(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = handle(), handle("t2")
    succeed(one, 1)
    later(lambda: succeed(two, 2))
    with redirect_stderr(terminal):
        assert get([one, two], progress=True) == [1, 2]
    assert "2/2" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_what_the_program_prints_stays_on_stdout(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    one = handle()
    later(lambda: (print("by the program"), succeed(one)))
    with redirect_stderr(terminal):
        assert get(one, progress=True) == 42
    assert capsys.readouterr().out == "by the program\n"
    assert "by the program" not in terminal.getvalue()


def test_tqdm_is_used_where_it_is(bars: list[FakeTqdm]) -> None:
    one, bad = handle(), handle("t2")
    succeed(one)
    fail(bad, ValueError("bad"))
    with pytest.raises(ValueError, match="bad"):
        get([one, bad, one], progress=True)
    (bar,) = bars
    assert (bar.options["total"], bar.options["file"], bar.n, bar.postfix, bar.closed) == (
        2,
        sys.stderr,
        2,
        {"failed": 1},
        True,
    )


def test_wait_counts_to_what_was_asked_for(bars: list[FakeTqdm]) -> None:
    many = [handle(f"t{number}") for number in range(4)]
    for one in many[:3]:
        succeed(one)
    assert wait(many, num_returns=2, progress=True) == (many[:2], many[2:])
    (bar,) = bars
    assert (bar.options["total"], bar.n) == (2, 2)
    assert many[3]._item._watchers is None or many[3]._item._watchers == []


def test_parts_of_one_item_are_one(bars: list[FakeTqdm]) -> None:
    parts = PartHandle.split(handle(), 2)
    succeed(parts[0], (1, 2))
    assert get(parts, progress=True) == [1, 2]
    assert bars[0].options["total"] == 1


def test_a_bar_ends_with_its_wait(bars: list[FakeTqdm]) -> None:
    with pytest.raises(ConfigurationError, match="timeout"):
        get(handle(), timeout="soon", progress=True)  # type: ignore[arg-type]  # on purpose
    over, rest = wait([handle()], timeout=0.01, progress=True)
    assert (over, len(rest)) == ([], 1)
    assert all(bar.closed for bar in bars)


@pytest.mark.parametrize("wanted", [None, False])
def test_it_is_off_unless_asked_for(wanted: bool | None, bars: list[FakeTqdm]) -> None:
    one = handle()
    succeed(one)
    assert get([one], progress=wanted) == [42]
    assert bars == []


def test_it_is_off_without_a_terminal(bars: list[FakeTqdm], monkeypatch: pytest.MonkeyPatch) -> None:
    one = handle()
    succeed(one)
    monkeypatch.setattr(progress, "in_notebook", lambda: False)
    closed = io.StringIO()
    closed.close()
    for nowhere in (io.StringIO(), None, closed):
        monkeypatch.setattr(sys, "stderr", nowhere)
        assert get([one], progress=True) == [42]
    assert not bars


def test_a_notebook_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    shell = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert not progress.is_seen(), "IPython in a pipe"
    shell.kernel = object()
    assert progress.is_seen()


def test_anything_else_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="progress is 'yes'"):
        get([handle()], progress="yes")  # type: ignore[arg-type]  # on purpose


def test_a_screen_that_raises_harms_nobody(bars: list[FakeTqdm], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(FakeTqdm, "refresh", broken)
    one = handle()
    succeed(one)
    assert get([one], progress=True) == [42]


def test_a_screen_that_takes_nothing_holds_nobody_up(bars: list[FakeTqdm], monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = threading.Event()
    monkeypatch.setattr(FakeTqdm, "refresh", lambda _: stuck.wait(120))
    monkeypatch.setattr(progress, "LAST_WORD_S", 0.05)
    many = [handle(f"t{number}") for number in range(1000)]
    later(lambda: [succeed(one) for one in many])
    began = time.monotonic()
    assert len(get(many, progress=True)) == 1000
    assert time.monotonic() - began < 60
    stuck.set()


def test_a_map_counts_its_calls(bars: list[FakeTqdm], tmp_path: Path) -> None:
    with (
        HttpService(tmp_path, works=True) as service,
        UnifiedScheduler(address=service.address) as scheduler,
        FleetExecutor(scheduler) as pool,
    ):
        values = pool.map(lambda number: 1 / number, [2, 1, 0, 4], chunksize=2, progress=True)
        assert [next(values), next(values)] == [0.5, 1]
        with pytest.raises(ZeroDivisionError):
            next(values)
        assert list(values) == [0.25]
        closed = pool.map(str, range(10), progress=True)
        closed.close()
    assert (bars[0].options["total"], bars[0].n, bars[0].postfix, bars[0].closed) == (4, 4, {"failed": 1}, True)
    assert bars[1].closed


def test_a_time_that_is_over_ends_the_bar(bars: list[FakeTqdm]) -> None:
    with pytest.raises(TaskTimeoutError):
        get([_explained()], timeout=0.01, progress=True)
    assert bars[0].closed


def _explained() -> Any:
    one = handle()
    one._runtime = SimpleNamespace(in_forked_child=False, explain=lambda _: {"state": "QUEUED"})  # type: ignore[assignment]  # as much as is asked
    return one
