"""Logs of jobs whose attempts never ran, or cannot be read any more."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ray_multicluster_scheduler.cli.service import item_wait
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Dispatch
from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.test_job import SILENT, Dashboard, end, end_when_it_is_followed, running, state
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import ServicePlane


@pytest.fixture
def service(service: HttpService) -> HttpService:
    service.plane.runtime.clients = Dashboard()  # type: ignore[assignment]  # a fake
    return service


class TestAttemptsThatNeverRan:
    """A job is followed over those that its cluster refused."""

    @pytest.fixture
    def refused(self, monkeypatch: pytest.MonkeyPatch) -> set[int]:
        """Attempts with these numbers are."""
        dispatch, refused = ServicePlane.dispatch, set[int]()

        def some(plane: ServicePlane, orders: list[Dispatch]) -> None:
            for order in orders:
                if order.attempt in refused:
                    no = events.DispatchRefused(order.task_id, order.attempt, FailureClass.CRASH, "REFUSED", "no")
                    plane.post(no)
                else:
                    dispatch(plane, [order])

        monkeypatch.setattr(ServicePlane, "dispatch", some)
        return refused

    @pytest.mark.parametrize("words", [(), ("--tail", "3")])
    def test_one_that_never_ran_has_failed(
        self, service: HttpService, rmcs: Rmcs, refused: set[int], words: tuple[str, ...]
    ) -> None:
        service.plane.runtime.clients = Dashboard("-1")  # type: ignore[assignment]  # a fake
        refused.add(1)
        output = {"id": "j", "kind": "job", "name": "j", "job": {"entrypoint": "true"}, "crash_retries": 0}
        service.post("/api/v1/items", {"task": output})
        until(lambda: state(service, "j") == "FAILED")
        for _ in range(2):
            done = rmcs("job", "logs", "-f", "j", *words)
            assert (done.code, done.out) == (100, ""), done.err
            assert ("Attempt 1 of job j printed nothing: it did not run on mac" in done.err) == bool(words)
            service.restart()
            service.plane.runtime.clients = Dashboard("-1")  # type: ignore[assignment]  # a fake

    @pytest.mark.parametrize("unknown", [("-2",), ("-1", "-2")])
    def test_later_attempts_are_followed(
        self, service: HttpService, rmcs: Rmcs, refused: set[int], unknown: tuple[str, ...]
    ) -> None:
        """Also where the cluster has forgotten one that ran."""
        dashboard = service.plane.runtime.clients = Dashboard(*unknown)  # type: ignore[assignment]  # a fake
        refused.add(2)
        output = {
            "id": "j",
            "kind": "job",
            "name": "j",
            "job": {"entrypoint": "true"},
            "retries": 3,
            "crash_retries": 3,
        }
        service.post("/api/v1/items", {"task": output})
        until(lambda: state(service, "j") == "RUNNING")

        def happens() -> None:
            assert dashboard.followed.wait(30)
            broke = events.AttemptFinished("j", 1, "failed", failure=FailureClass.USER, sentence="it broke")
            service.plane.post(broke)
            until(
                lambda: (reported := service.get("/api/v1/items/j"))["attempt"] == 3 and reported["state"] == "RUNNING"
            )
            service.plane.post(events.AttemptFinished("j", 3, "succeeded"))

        thread = threading.Thread(target=happens)
        thread.start()
        done = rmcs("job", "logs", "-f", "j")
        thread.join()
        assert (done.code, done.out) == (0, "a line\na line\n"), done.err

    def test_unreachable_cluster_is_reported_and_other_output_is_printed(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        end(service, running(service, "j"), "failed")

        async def silent(*_: object) -> str:
            raise SILENT

        monkeypatch.setattr(Dashboard, "job_logs", silent)
        for words in ((), ("--tail", "1")):
            done = rmcs("job", "logs", "-f", "j", *words)
            assert (done.code, done.out) == (100, "")
            assert done.err == "rmcs: the output cannot be read: mac does not answer.\n"

    def test_unreachable_cluster_of_a_running_job_is_reported_once(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """And what it printed is heard when the cluster is back; nobody is notified of a defect."""
        job, asked = running(service, "j"), 0

        async def late(*_: object) -> dict[str, Any]:
            nonlocal asked
            asked += 1
            if asked < 3:
                raise SILENT
            return {"status": "RUNNING"}

        monkeypatch.setattr(Dashboard, "job_info", late)
        monkeypatch.setattr(item_wait, "REREAD_S", 0.2)
        ending = end_when_it_is_followed(service, job)
        done = rmcs("job", "logs", "-f", "j")
        ending.join()
        assert (done.code, done.out) == (0, "a line\n")
        assert done.err == "rmcs: the output cannot be read: mac does not answer.\n"
        assert not [one for one in caplog.records if one.levelname == "ERROR"]

    def test_an_attempt_on_a_cluster_that_is_gone_does_not_hide_the_next(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        output = {"id": "j", "kind": "job", "name": "j", "job": {"entrypoint": "true"}, "retries": 1}
        service.post("/api/v1/items", {"task": output})
        until(lambda: state(service, "j") == "RUNNING")

        async def gone_or_running(_: Dashboard, submission_id: str) -> dict[str, Any]:
            if submission_id.endswith("-1"):
                raise SILENT
            return {"status": "RUNNING"}

        async def gone_or_printed(_: Dashboard, submission_id: str) -> str:
            if submission_id.endswith("-1"):
                raise SILENT
            return "a line\n"

        unread, printed = threading.Event(), threading.Event()
        say, write = item_wait.notify, item_wait.to_stdout
        monkeypatch.setattr(item_wait, "notify", lambda text: (say(text), unread.set()))
        monkeypatch.setattr(item_wait, "to_stdout", lambda text: (write(text), printed.set()))
        monkeypatch.setattr(Dashboard, "job_info", gone_or_running)
        monkeypatch.setattr(Dashboard, "job_logs", gone_or_printed)

        def happens() -> None:
            assert unread.wait(30)
            service.plane.post(events.AttemptFinished("j", 1, "failed", FailureClass.USER, sentence="it broke"))
            until(
                lambda: (reported := service.get("/api/v1/items/j"))["attempt"] == 2 and reported["state"] == "RUNNING"
            )
            received.append(printed.wait(30))
            service.plane.post(events.AttemptFinished("j", 2, "succeeded"))

        received: list[bool] = []
        thread = threading.Thread(target=happens)
        thread.start()
        done = rmcs("job", "logs", "-f", "j")
        thread.join()
        assert (done.code, done.out) == (0, "a line\n"), done.err
        assert received == [True], "while the second one ran"

    def test_only_the_end_is_wanted_also_where_it_could_not_be_read_at_first(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job, asked = running(service, "j"), 0

        async def late(*_: object) -> str:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise SILENT
            return "one\ntwo\nthree\n"

        monkeypatch.setattr(Dashboard, "job_logs", late)
        monkeypatch.setattr(item_wait, "REREAD_S", 0.2)
        ending = end_when_it_is_followed(service, job)
        done = rmcs("job", "logs", "-f", "j", "--tail", "1")
        ending.join()
        assert (done.code, done.out) == (0, "three\na line\n"), "the end of it, and what it printed since"
