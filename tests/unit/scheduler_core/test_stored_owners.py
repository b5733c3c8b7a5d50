"""What people said of owners, as it is kept."""

from __future__ import annotations

import json
from dataclasses import replace

from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.scheduler.lifecycle.rows import OwnerRow
from ray_multicluster_scheduler.scheduler.scheduler_core import record_codec

LIMITS = OwnerLimits(weight=2, max_queued=3, max_running=4, max_gpus=0.5, max_priority=-1)


def test_pauses_and_limits_come_back() -> None:
    owners = (OwnerRow("ann", "holiday"), OwnerRow("bob", None, LIMITS), OwnerRow("eve", "", OwnerLimits()))
    stored = record_codec.encode_fleet([], owners, [], {})
    assert record_codec.decode_fleet(stored) == ((), owners, ())


def test_what_was_written_before_there_were_limits_is_understood() -> None:
    stored = replace(record_codec.encode_fleet([], [], [], {}), owners={"ann": b'{"v": 1, "paused": "holiday"}'})
    assert record_codec.decode_fleet(stored)[1] == (OwnerRow("ann", "holiday"),)


def test_limits_of_a_later_version_may_be_more() -> None:
    stored = record_codec.encode_fleet([], [OwnerRow("bob", None, LIMITS)], [], {})
    output = json.loads(stored.owners["bob"])
    output["limits"]["max_actors"] = 7
    later = replace(stored, owners={"bob": json.dumps(output).encode()})
    assert record_codec.decode_fleet(later)[1] == (OwnerRow("bob", None, LIMITS),)
