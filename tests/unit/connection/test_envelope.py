"""The envelope of a call's answer: head and payload come back as they went in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import BIG_BYTES, pack, pack_success, unpack

HEADS = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()))


@given(HEADS, st.binary())
def test_round_trip(head: dict[str, object], payload: bytes) -> None:
    came, pieces = unpack(pack(head, [payload]))
    assert (came, b"".join(pieces)) == (head, payload)


def test_the_payload_is_a_view_and_not_a_copy() -> None:
    data = pack({"status": "succeeded"}, [b"x" * 1_000_000])
    _, (view,) = unpack(data)
    assert isinstance(view, memoryview)
    assert view.obj is data


def test_a_large_payload_is_never_copied() -> None:
    pieces = [b"start", b"x" * BIG_BYTES, b"end"]
    envelope = pack_success(1.0, 0.5, "node", pieces)
    head, came = unpack(envelope)
    assert isinstance(envelope, list)
    assert head["status"] == "succeeded"
    assert b"".join(came) == b"".join(pieces)
    assert any(memoryview(piece).obj is pieces[1] for piece in came)


def test_a_plain_success_is_the_same_head_in_fewer_bytes() -> None:
    head = {"status": "succeeded", "at": 1700000000.25, "node": "ab" * 28, "took": 0.5}
    data = pack_success(1700000000.25, 0.5, "ab" * 28, [b"value"])
    came, pieces = unpack(data)
    assert (came, b"".join(pieces)) == (head, b"value")
    assert len(data) < len(pack(head, [b"value"]))
