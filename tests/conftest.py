"""For all tests: groups by folder, an environment of their own, and a check for what a test leaves behind."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

TESTS = Path(__file__).resolve().parent
GROUPS = {"unit": "unit", "contract": "unit", "integration": "integration", "performance": "integration"}
SETTLE_S = 30.0
"""How long closing sockets, ending threads and exiting children may take after a test."""

# Machines that run tests are busy, so a slow example is no failure; a red build must be red again when repeated.
hypothesis.settings.register_profile("project", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
hypothesis.settings.load_profile("project")


def pytest_configure() -> None:
    """Tests that are started in the background of a shell are to ignore Ctrl+C; those that send it to themselves, or to
    their children, would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="rewrite the expected output in tests/golden")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder; the quick ones go first, so that a mistake shows early."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder not in GROUPS:
            raise pytest.UsageError(f"{item.path}: put tests into one of tests/{{{','.join(GROUPS)}}}/")
        item.add_marker(GROUPS[folder])
    items.sort(key=lambda item: item.get_closest_marker("unit") is None)


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees the configuration or state of the person who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("RMCS_") and name != "RMCS_RAY_PYTHON"]:
            patch.delenv(name)
        patch.setenv("RMCS_HOME", str(tmp_path_factory.mktemp("rmcs-home")))
        yield


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """Whoever asks for our log asks for it in this process: it must not be another test's, too."""
    ours = logging.getLogger("ray_multicluster_scheduler")
    level, handlers, propagate = ours.level, list(ours.handlers), ours.propagate
    yield
    ours.setLevel(level)
    ours.handlers[:], ours.propagate = handlers, propagate


def _threads() -> dict[object, str]:
    return {thread: f"thread {thread.name}" for thread in threading.enumerate()}


def _children() -> dict[object, str]:
    found: dict[object, str] = {}
    # Direct ones only: what a fleet that was there before does inside its own processes is its business.
    for child in psutil.Process().children():
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                found[child] = f"process {child.pid} ({' '.join(child.cmdline())[:100]})"
        except psutil.NoSuchProcess:
            continue
    return found


def _sockets() -> dict[object, str]:
    return {
        (link.fd, link.laddr, link.raddr): f"socket {link.laddr} -> {link.raddr or '-'} {link.status}"
        for link in psutil.Process().net_connections("inet")
    }


@pytest.fixture
def leak_check() -> Iterator[None]:
    """Ask for it: fails a test that leaves a thread, a child process or a socket behind in this process."""
    kinds: list[Callable[[], dict[object, str]]] = [_threads, _children, _sockets]
    before = [kind() for kind in kinds]
    yield
    deadline = time.monotonic() + SETTLE_S
    while True:
        left = [text for kind, old in zip(kinds, before, strict=True) for key, text in kind().items() if key not in old]
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail("left behind: " + "; ".join(left))
        time.sleep(0.05)
