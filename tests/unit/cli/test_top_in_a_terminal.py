"""`rmcs top`, whole, in a terminal: what each key shows."""

from __future__ import annotations

import signal
import termios
from collections.abc import Iterator

import pytest

from ray_multicluster_scheduler.cli.top.state import AHEAD
from tests.unit.cli.terminal import Terminal
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService


class TestInATerminal:
    @pytest.fixture
    def terminal(self, service: HttpService) -> Iterator[Terminal]:
        service.submit("alpha-1")
        until(lambda: service.get("/api/v1/items/alpha-1")["state"] == "RUNNING")
        one = Terminal()
        try:
            one.until("\x1b[?1049h")
            one.until("mac")
            yield one
        finally:
            one.close()

    def test_keys(self, terminal: Terminal) -> None:
        assert termios.tcgetattr(terminal._theirs) != terminal.before
        terminal.type("\x1b[D")
        terminal.until("alpha-1")
        terminal.type("/zzz")
        terminal.until("No row contains 'zzz'.")
        terminal.type("\x1b")
        terminal.until("alpha-1")
        terminal.type("p")
        terminal.until("PAUSED")
        terminal.resize(30, 6)
        terminal.text = ""
        terminal.until("quit")
        terminal.type("q")
        assert terminal.end() == 0

    def test_the_end_of_a_long_queue(self, terminal: Terminal, service: HttpService) -> None:
        service.submit("broad", 8)
        for number in range(AHEAD + 60):
            service.submit(f"late-{number:03}", 8)
        until(lambda: service.get("/api/v1/queue")["depth"] == AHEAD + 61)
        terminal.type("3")
        terminal.until("broad")
        terminal.until(f"of {AHEAD + 61}")
        terminal.type("\x1b[F")
        terminal.until(f"late-{AHEAD + 59:03}")
        terminal.type("\x1b[H")
        terminal.until("broad")
        terminal.type("q")
        assert terminal.end() == 0

    def test_a_pause_freezes_the_data(self, terminal: Terminal, service: HttpService) -> None:
        depth = AHEAD + 61
        for number in range(depth):  # they came after `rmcs top` had begun
            service.submit(f"late-{number:03}", 8)
        until(lambda: service.get("/api/v1/queue")["depth"] == depth)
        terminal.text = ""
        terminal.until(f"Queue {depth}")
        terminal.type("p")
        terminal.until("PAUSED")
        terminal.type("3")
        terminal.until("late-000")
        terminal.type("\x1b[F")
        terminal.until(f"late-{depth - 1:03}")
        terminal.until(f"{depth - 15}-{depth} of {depth}")
        service.submit("later", 8)
        until(lambda: service.get("/api/v1/queue")["depth"] == depth + 1)
        terminal.type("\x1b[A")
        terminal.until(f"{depth - 16}-{depth - 1} of {depth}")
        terminal.type("/late-150")
        terminal.until("▏")
        terminal.type("\r\x1b")
        terminal.until(f"1-16 of {depth}")
        terminal.type("p")
        terminal.until(f"of {depth + 1}")
        terminal.type("q")
        assert terminal.end() == 0

    def test_the_end_of_the_queue_while_the_service_is_away(self, terminal: Terminal, service: HttpService) -> None:
        for number in range(AHEAD + 61):
            service.submit(f"late-{number:03}", 8)
        until(lambda: service.get("/api/v1/queue")["depth"] == AHEAD + 61)
        terminal.type("3")
        terminal.until(f"1-16 of {AHEAD + 61}")
        service.stop()
        terminal.until("No answer for")
        terminal.type("p\x1b[F")
        terminal.until("PAUSED")
        terminal.until(f"{AHEAD + 1}-{AHEAD + 16} of {AHEAD + 61}")
        terminal.type("\x1b[A")
        terminal.until(f"{AHEAD}-{AHEAD + 15} of {AHEAD + 61}")
        service.start()
        terminal.text = ""
        terminal.until(f"at {service.address}")
        terminal.type("\x1b[F")
        terminal.until(f"late-{AHEAD + 60:03}")
        terminal.type("q")
        assert terminal.end() == 0

    def test_ctrl_c(self, terminal: Terminal) -> None:
        terminal.type("\x03")
        assert terminal.end() == 130

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_signals(self, terminal: Terminal, number: signal.Signals) -> None:
        terminal.process.send_signal(number)
        assert terminal.end() == 128 + number

    def test_the_service_goes_and_comes_back(self, terminal: Terminal, service: HttpService) -> None:
        service.stop()
        terminal.until("No answer for")
        service.start()
        terminal.text = ""
        terminal.until(f"at {service.address}")
        terminal.type("q")
        assert terminal.end() == 0

    def test_a_token_that_is_revoked_ends_it(self, terminal: Terminal, service: HttpService) -> None:
        service.book.revoke(service.token.split("_")[1], force=True)
        assert terminal.end() == 1
        assert "rejects the token from RMCS_TOKEN" in terminal.text.partition("\x1b[?1049l")[2]
