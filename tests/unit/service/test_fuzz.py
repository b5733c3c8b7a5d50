"""Fuzzing a service: no defect, no hang, no answer outside its OpenAPI document, and no leak.

Longer: ``make fuzz MINUTES=10``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.service.fuzzed_service import FuzzedService
from tests.unit.service.fuzzing import Fuzzer
from tests.unit.service.leaks import leaks
from tests.unit.service.socket_fuzzing import SocketFuzzer

SHORT_S, LONG_S = 15.0, 40.0
SOCKET_SECONDS = 10.0


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[FuzzedService]:
    service = FuzzedService(tmp_path)
    yield service
    service.end()


@pytest.mark.parametrize("seconds", [SHORT_S, pytest.param(LONG_S, marks=pytest.mark.slow)])
def test_it_answers_every_request(fuzzed: FuzzedService, seconds: float) -> None:
    fuzzer = Fuzzer(fuzzed)
    fuzzer.run(5.0, examples=1)  # what is made once for all is no leak
    before = fuzzed.holds()
    begun = time.monotonic()
    fuzzer.run(seconds, examples=3)
    fuzzer.close()
    assert time.monotonic() - begun < seconds + 60
    assert not fuzzer.problems, "\n\n".join(fuzzer.problems.values())
    assert fuzzer.answers["200"] > 50
    assert not leaks(fuzzed, before), fuzzer.answers


def test_its_websocket_hears_anything(fuzzed: FuzzedService) -> None:
    fuzzer = SocketFuzzer(fuzzed)
    fuzzer.run(2.0)  # what is made once for all is no leak
    fuzzer.close()
    before = fuzzed.holds()
    fuzzer.run(SOCKET_SECONDS)
    fuzzer.close()
    assert not fuzzer.problems, "\n\n".join(fuzzer.problems.values())
    assert fuzzer.answers["well"] > 5, fuzzer.answers
    assert fuzzer.answers["handshake 101"] > 50, fuzzer.answers
    assert not leaks(fuzzed, before), fuzzer.answers
