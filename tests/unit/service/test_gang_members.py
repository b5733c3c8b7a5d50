"""Members of a gang are explained before the service knows the gang, before it is written, and afterwards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api.gangs.member import member
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.exception import UnknownItemError
from ray_multicluster_scheduler.common.model import GangDescription, MemberDescription
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import SubmitRequest
from tests.support.watched_disk import WatchedDisk
from tests.unit.client_api.actor_plane import Counter
from tests.unit.client_api.control_plane import until
from tests.unit.lifecycle.driver import task
from tests.unit.service.actor_service import runtime_of
from tests.unit.service.request_faults import Gate, RequestFaults
from tests.unit.service.service_plane import BLOBS, A, F, ServicePlane, running

pytestmark = pytest.mark.usefixtures("leak_check")


def test_a_program_explains_a_member_that_its_service_has_not_accepted(
    scheduler: UnifiedScheduler, requests: RequestFaults
) -> None:
    gate = Gate()
    requests.once("/api/v1/items", gate)
    with ThreadPoolExecutor() as threads:
        made = threads.submit(scheduler.submit_gang_async, [member(Counter), member(Counter)])
        try:
            assert gate.reached.wait(60)
            (gang,) = runtime_of(scheduler).unfinished()
            for name in (gang.id, f"{gang.id}.1"):
                explanation = scheduler.explain(name)
                assert (explanation["id"], explanation["code"]) == (gang.id, "NOT_ACCEPTED")
                assert explanation["code"] == "NOT_ACCEPTED"
            assert explanation["member"] == {"id": f"{gang.id}.1", "index": 1, "name": "Counter"}
            with pytest.raises(UnknownItemError):
                scheduler.explain(f"{gang.id}.2")
        finally:
            gate.open()
        made.result(60)
    explanation = scheduler.explain(f"{gang.id}.1")
    assert (explanation["id"], explanation["member"]["index"]) == (gang.id, 1)


def test_a_service_explains_a_member_whose_gang_is_being_written(tmp_path: Path) -> None:
    disk = WatchedDisk()
    one = MemberDescription(name="f", requirements={"CPU": 1.0}, function_digest=F, arguments_digest=A)
    gang = task("pair", 2, kind="gang", gang=GangDescription(members=(one, one), of="task"))
    with ServicePlane(tmp_path / "state", limits={"vfs": disk.name}) as plane:
        disk.full = True
        answer = plane.runtime.start(plane.runtime.accept([SubmitRequest(gang)], BLOBS))
        try:
            until(lambda: plane.runtime.item("pair") is not None)
            explanation = plane.runtime.run(plane.runtime.explanation_of("pair.1"))
            assert (explanation["id"], explanation["member"]["index"]) == ("pair", 1)
            with pytest.raises(UnknownItemError):
                plane.runtime.run(plane.runtime.explanation_of("pair.2"))
        finally:
            disk.full = False
            answer.exception(20)


def test_a_member_of_a_gang_that_is_over_is_explained_from_the_store(tmp_path: Path) -> None:
    one = MemberDescription(name="f", requirements={"CPU": 1.0}, function_digest=F, arguments_digest=A)
    with ServicePlane(tmp_path / "state") as plane:
        item = running(plane.taken(task("pair", 2, kind="gang", gang=GangDescription(members=(one, one), of="task"))))
        plane.finish(item)
        plane.restart()
        explanation = plane.runtime.run(plane.runtime.explanation_of("pair.1"))
        assert (explanation["id"], explanation["state"]) == ("pair", "SUCCEEDED")
        assert explanation["member"] == {"id": "pair.1", "index": 1, "name": "f"}
        for wrong in ("pair.2", "pair.01", "pair.", ".1"):
            with pytest.raises(UnknownItemError):
                plane.runtime.run(plane.runtime.explanation_of(wrong))
