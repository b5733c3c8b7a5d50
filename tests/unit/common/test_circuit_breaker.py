"""CircuitBreaker: closed, open, half open, and back."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.circuit_breaker import BreakerState, CircuitBreaker


def opened(at: float = 100.0) -> CircuitBreaker:
    breaker = CircuitBreaker(failures=3, recovery_s=60)
    for _ in range(3):
        breaker.record_failure(at)
    return breaker


def test_it_opens_only_after_enough_failures_in_a_row() -> None:
    breaker = CircuitBreaker(failures=3, recovery_s=60)
    breaker.record_failure(1)
    breaker.record_failure(2)
    breaker.record_success()
    breaker.record_failure(3)
    breaker.record_failure(4)
    assert breaker.state(4) is BreakerState.CLOSED
    assert breaker.half_open_at is None
    breaker.record_failure(5)
    assert breaker.state(5) is BreakerState.OPEN
    assert breaker.failures_in_a_row == 3


def test_an_answer_takes_back_the_silence_before_it_and_no_other_failure() -> None:
    breaker = CircuitBreaker(failures=3, recovery_s=60)
    breaker.record_failure(1)
    breaker.record_failure(2, silence=True)
    breaker.record_answer()
    breaker.record_answer()
    assert breaker.failures_in_a_row == 1
    breaker.record_failure(3, silence=True)
    breaker.record_success()
    breaker.record_failure(4)
    breaker.record_answer()
    assert breaker.failures_in_a_row == 1, "the silence of before was forgotten with all else"


def test_an_answer_that_is_no_probe_does_not_close_it() -> None:
    breaker = CircuitBreaker(failures=1, recovery_s=60)
    breaker.record_failure(100, silence=True)
    breaker.record_answer()
    assert breaker.state(100) is BreakerState.OPEN
    assert breaker.failures_in_a_row == 1
    breaker.close()
    breaker.record_answer()
    assert breaker.failures_in_a_row == 0


@pytest.mark.parametrize(("now", "state"), [(100, "OPEN"), (159.9, "OPEN"), (160, "HALF_OPEN"), (999, "HALF_OPEN")])
def test_it_is_half_open_after_the_recovery_time(now: float, state: str) -> None:
    assert opened().state(now) == state


def test_a_probe_closes_it_only_when_its_time_has_come() -> None:
    breaker = opened()
    breaker.record_probe(120)
    assert breaker.state(120) is BreakerState.OPEN
    breaker.record_probe(160)
    assert breaker.state(160) is BreakerState.CLOSED
    assert breaker.failures_in_a_row == 0


def test_a_success_that_is_no_probe_does_not_close_it() -> None:
    breaker = opened()
    breaker.record_success()
    assert breaker.state(160) is BreakerState.HALF_OPEN
    assert breaker.failures_in_a_row == 3


def test_one_failure_while_half_open_opens_it_again_for_the_whole_time() -> None:
    breaker = opened()
    breaker.record_failure(170)
    assert breaker.state(229) is BreakerState.OPEN
    assert breaker.half_open_at == 230


def test_failures_while_open_do_not_put_the_probe_off() -> None:
    breaker = opened()
    breaker.record_failure(150)
    assert breaker.half_open_at == 160
