"""Shared by all tests: groups by folder, an isolated environment, and a leak check."""

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

from ray_multicluster_scheduler.common.notices import unread_failures

TESTS = Path(__file__).resolve().parent
GROUPS = {"unit": "unit", "contract": "unit", "integration": "integration", "performance": "integration"}
SETTLE_S = 30.0
"""How long closing sockets, ending threads and exiting children may take after a test."""

# Test machines are busy, so a slow example is no failure. In CI, a failure must be reproducible.
hypothesis.settings.register_profile("project", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
hypothesis.settings.load_profile("project")


def pytest_configure() -> None:
    """Restore the handler of Ctrl+C, which a shell ignores for background processes; some tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionfinish() -> None:
    """The exit report of failed items is for programs."""
    unread_failures.clear()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="rewrite the expected output in tests/golden")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder; unit tests run first, so that failures show early."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder not in GROUPS:
            raise pytest.UsageError(f"{item.path}: put tests into one of tests/{{{','.join(GROUPS)}}}/")
        item.add_marker(GROUPS[folder])
    items.sort(key=lambda item: item.get_closest_marker("unit") is None)


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Isolate tests from the configuration and state of the user who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("RMCS_") and name != "RMCS_RAY_PYTHON"]:
            patch.delenv(name)
        patch.setenv("RMCS_HOME", str(tmp_path_factory.mktemp("rmcs-home")))
        patch.setenv("RMCS_AGENT_LINGER_S", "0")  # an agent would outlive its test
        yield


@pytest.fixture(autouse=True)
def _restored_log() -> Iterator[None]:
    """Restore level and handlers of our logger, which a test may configure for the whole process."""
    ours = logging.getLogger("ray_multicluster_scheduler")
    level, handlers, propagate = ours.level, list(ours.handlers), ours.propagate
    yield
    ours.setLevel(level)
    ours.handlers[:], ours.propagate = handlers, propagate


def _threads() -> dict[object, str]:
    return {thread: f"thread {thread.name}" for thread in threading.enumerate()}


def _children() -> dict[object, str]:
    found: dict[object, str] = {}
    # Only direct children: an existing fleet may start processes of its own.
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
    """Fails a test that leaves a thread, a child process or a socket behind in this process."""
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
