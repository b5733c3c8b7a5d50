"""OrphanedResults: claimed once, and bounded in number and bytes."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.scheduler.connection.links.pending_calls import OrphanedResult, OrphanedResults

HEAD: dict[str, Any] = {"status": "succeeded"}


def key(number: int) -> tuple[str, int]:
    return (f"call-{number}", 1)


def test_an_answer_is_claimed_once() -> None:
    kept = OrphanedResults()
    assert kept.add(key(1), HEAD, memoryview(b"value")) == []
    assert kept.claim(key(2)) is None
    assert kept.claim(key(1)) == OrphanedResult(HEAD, b"value")
    assert kept.claim(key(1)) is None
    assert len(kept) == 0


def test_the_oldest_are_given_up_for_newer_ones() -> None:
    kept = OrphanedResults(max_results=2)
    assert [kept.add(key(number), HEAD, b"") for number in range(4)] == [[], [], [key(0)], [key(1)]]
    assert kept.add(key(2), HEAD, b"again") == [], "it takes its own place"
    assert kept.clear() == [key(3), key(2)]
    assert kept.clear() == []


def test_only_the_entry_of_a_too_large_result_is_kept() -> None:
    kept = OrphanedResults(max_bytes=10)
    for number, payload in enumerate((b"x" * 6, b"y" * 6, b"z" * 4)):
        assert kept.add(key(number), HEAD, payload) == []
    assert kept.claim(key(1)) == OrphanedResult(HEAD, None)
    assert kept.claim(key(0)) == OrphanedResult(HEAD, b"x" * 6)
    kept.add(key(3), HEAD, b"y" * 6)
    kept.add(key(3), HEAD, b"y" * 6)
    assert kept.claim(key(3)) == OrphanedResult(HEAD, b"y" * 6)
    assert kept.claim(key(2)) == OrphanedResult(HEAD, b"z" * 4)
