"""What was repeated already: the same failure is not run twice by mistake."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.service.client import path_of

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service
    from ray_multicluster_scheduler.common.exception import SchedulerError


def repetitions(service: Service, ids: Sequence[str]) -> dict[str, str]:
    """Of those that were repeated: as what, lately. A list of items does not tell: each is asked for."""
    from ray_multicluster_scheduler.cli.service.concurrent_requests import side_by_side
    from ray_multicluster_scheduler.cli.terminal.status_line import Meanwhile

    found: dict[str, str] = {}
    answers = side_by_side(lambda one: service.get(path_of("items", one)).get("repeated_by"), ids)
    with Meanwhile() as reason:
        for number, (one, again) in enumerate(zip(ids, answers, strict=True), start=1):
            if again:
                found[one] = str(again[-1])
            if len(ids) > 1:
                reason.show(f"looking which were repeated before: {number:,} of {len(ids):,}")
    return found


def repetition_key(item_id: str, last: str | None) -> str:
    """The name of the repetition that follows the ``last`` one. Whoever asks for it again, because the answer was lost
    or somebody else asks at the same moment, asks for the same one."""
    return f"rmcs-retry-{sha256(json.dumps([item_id, last]).encode()).hexdigest()}"


def repeated_already(service: Service, item_id: str, again: str) -> SchedulerError:
    """Why it is not repeated once more, and what became of the repetition."""
    from ray_multicluster_scheduler.common.exception import SchedulerError

    state = str(service.get(path_of("items", again))["state"])
    badly = exit_codes.code_of(state) in (exit_codes.FAILED, exit_codes.CANCELLED)
    step = f"repeat that one: rmcs task retry {again}" if badly else f"look at that one: rmcs task show {again}"
    return SchedulerError(
        f"{item_id} was repeated already, as {again}, which is {state}.",
        task_id=item_id,
        next_step=f"{step}; or repeat this one once more all the same: --anyway",
    )
