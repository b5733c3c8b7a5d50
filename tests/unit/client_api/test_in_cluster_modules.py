"""The native side without a cluster: routing, what goes along with a child, and the same face as outside."""

from __future__ import annotations

import gc
import inspect
import pickle
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

import ray_multicluster_scheduler as api
from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.in_cluster import jobs, runtime_context
from ray_multicluster_scheduler.app.client_api.in_cluster.actors import NativeActorHandle, rebuild_actor
from ray_multicluster_scheduler.app.client_api.in_cluster.handle import (
    NativeCallHandle,
    NativeObjectHandle,
    NativeTaskHandle,
)
from ray_multicluster_scheduler.app.client_api.in_cluster.jobs import NativeJobHandle, NativeJobs
from ray_multicluster_scheduler.app.client_api.in_cluster.ray_callables import (
    CallableCache,
    parent_fields,
    wrap_class,
    wrap_function,
)
from ray_multicluster_scheduler.app.client_api.in_cluster.scheduler import NativeScheduler
from ray_multicluster_scheduler.app.client_api.in_cluster.unsupported import UnsupportedVerbs, placeholder_class
from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.current_item import CurrentItem, get_current, set_current
from ray_multicluster_scheduler.common.exception import (
    ClusterConnectionError,
    ConfigurationError,
    SchedulerError,
    TaskSubmissionError,
    UnknownItemError,
)

ITEM = CurrentItem("task-1", 2, 7, "mac")


@pytest.fixture
def inside() -> Any:
    """As in a worker that runs a task of ours."""
    set_current(ITEM)
    yield ITEM
    set_current(None)


class TestRouting:
    def test_outside_there_is_no_native_side(self) -> None:
        with pytest.raises(SchedulerError, match="used outside"):
            NativeScheduler()

    @pytest.mark.usefixtures("inside")
    def test_inside_every_way_to_a_scheduler_leads_to_it(self, tmp_path: Path) -> None:
        native = execution_context.active_scheduler()
        assert isinstance(native, NativeScheduler)
        assert api.get_unified_scheduler() is native
        assert api.initialize_scheduler_environment(tmp_path / "nowhere.yaml") is native

    @pytest.mark.usefixtures("inside")
    def test_the_class_is_another_one_inside(self) -> None:
        from ray_multicluster_scheduler.app.client_api import unified_scheduler

        assert unified_scheduler.UnifiedScheduler is NativeScheduler
        made = unified_scheduler.UnifiedScheduler(clusters=[{"name": "x", "dashboard": "http://127.0.0.1:9"}])
        with made as same:
            assert same is made

    def test_outside_it_is_the_embedded_one(self) -> None:
        assert api.UnifiedScheduler is UnifiedScheduler
        assert UnifiedScheduler.__module__.endswith(".unified_scheduler")
        assert pickle.loads(pickle.dumps(UnifiedScheduler)) is UnifiedScheduler

    def test_both_sides_have_the_same_verbs(self) -> None:
        """What can be called outside can be called the same way inside."""
        verbs = {name for name, verb in vars(UnifiedScheduler).items() if not name.startswith("_") and callable(verb)}
        assert verbs - set(dir(NativeScheduler)) == set()
        for verb in sorted(verbs - set(vars(UnsupportedVerbs))):  # those raise an error, whatever they are given
            outside = inspect.signature(getattr(UnifiedScheduler, verb)).parameters
            native = inspect.signature(getattr(NativeScheduler, verb)).parameters
            named = [(one.name, one.default) for one in outside.values() if one.kind is not one.VAR_KEYWORD]
            assert [(one.name, one.default) for one in native.values() if one.kind is not one.VAR_KEYWORD] == named, (
                verb
            )

    @pytest.mark.parametrize(
        ("outside", "native"),
        [
            (api.TaskHandle, NativeTaskHandle),
            (api.ObjectHandle, NativeObjectHandle),
            (api.JobHandle, NativeJobHandle),
            (api.ActorHandle, NativeActorHandle),
            (api.ActorCallHandle, NativeCallHandle),
        ],
    )
    def test_handles_have_the_same_face(self, outside: type, native: type) -> None:
        inner = {"part", "actors", "digest", "modules", "handles"}  # how the embedded control plane keeps its values
        public = {name for name in dir(outside) if not name.startswith("_")} - inner
        set_by_init = {"id"} if native is NativeJobHandle else set()
        assert public - set(dir(native)) <= set_by_init
        for name in sorted(public):
            face = getattr(outside, name)
            if inspect.isfunction(face):
                assert inspect.signature(face).parameters == inspect.signature(getattr(native, name)).parameters, name

    def test_an_actor_of_elsewhere_cannot_be_rebuilt_outside(self) -> None:
        with pytest.raises(SchedulerError, match="used outside"):
            rebuild_actor("actor-1", "mac", {})

    @pytest.mark.usefixtures("inside")
    def test_nor_on_another_cluster(self) -> None:
        with pytest.raises(ConfigurationError, match="cluster 'linux'"):
            rebuild_actor("actor-1", "linux", {})

    @pytest.mark.usefixtures("inside")
    def test_a_handle_must_be_one_of_an_actor_to_be_killed(self) -> None:
        with pytest.raises(ConfigurationError, match="not the handle of an actor"):
            api.kill("counter")  # type: ignore[arg-type]  # on purpose


class TestAChild:
    def test_a_function_knows_whose_child_it_is(self) -> None:
        def work(a: int, *, b: int = 1) -> Any:
            """Adds."""
            return a + b, get_current()

        child = cloudpickle.loads(cloudpickle.dumps(wrap_function(work)))
        assert child(parent_fields(ITEM), 1, b=2) == (3, ITEM)
        assert get_current() is None, "the worker serves others afterwards"
        assert (child.__name__, child.__doc__) == ("work", "Adds.")
        assert next(iter(inspect.signature(child).parameters)) == "parent", "Ray is not shown the user's signature"

    def test_also_when_it_fails(self) -> None:
        def fail() -> None:
            raise ValueError

        with pytest.raises(ValueError):
            wrap_function(fail)(parent_fields(ITEM))
        assert get_current() is None

    def test_what_is_no_plain_function(self) -> None:
        assert wrap_function(len)(parent_fields(ITEM), "abc") == 3
        assert wrap_function(dict)(parent_fields(ITEM), a=1) == {"a": 1}

    def test_a_class(self) -> None:
        class Base:
            def __init__(self, value: int = 1) -> None:
                self.value, self.parent = value, get_current()

        try:
            made = cloudpickle.loads(cloudpickle.dumps(wrap_class(Base)))(parent_fields(ITEM), value=5)
            assert (made.value, made.parent, type(made).__name__) == (5, ITEM, "Base")
            assert get_current() == ITEM, "for as long as the actor lives"
        finally:
            set_current(None)

    def test_what_was_made_is_kept_for_the_next_time(self) -> None:
        made: CallableCache[list[int]] = CallableCache(max_count=2)
        first = made.get(print, "key", lambda: [1])
        assert made.get(print, "key", lambda: [2]) is first
        assert made.get(print, "other", lambda: [3]) == [3]
        unhashable: list[int] = []
        assert made.get(unhashable, "key", lambda: [4]) is made.get(unhashable, "key", lambda: [5])
        assert made.get(print, "key", lambda: [6]) == [6], "the least used was dropped"

    def test_few_are_kept_since_their_closures_are_kept_with_them(self) -> None:
        class Big:
            """What a function captured."""

        def capture() -> tuple[Any, Any]:
            captured = Big()
            return lambda: captured, weakref.ref(captured)

        made: CallableCache[object] = CallableCache()
        gone = []
        for _ in range(101):
            function, captured = capture()
            made.get(function, "key", object)
            gone.append(captured)
            del function
        gc.collect()
        assert gone[0]() is None
        assert gone[1]() is not None


class TestOurPackage:
    def test_by_its_uri_where_ray_brought_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        file = "/tmp/ray/session/py_modules_files/_ray_pkg_0123abc/ray_multicluster_scheduler/__init__.py"
        monkeypatch.setattr(api, "__file__", file)
        assert runtime_context.own_package() == "gcs://_ray_pkg_0123abc.zip"

    def test_else_its_folder(self) -> None:
        assert Path(runtime_context.own_package()) == Path(api.__file__).parent

    def test_modules_are_joined(self) -> None:
        inherited = {"py_modules": ["gcs://a.zip", "gcs://b.zip"], "working_dir": "gcs://w.zip"}
        joined = runtime_context.with_inherited_modules(
            {"py_modules": ["gcs://b.zip", "gcs://c.zip"], "pip": ["x"]}, inherited
        )
        assert joined == {"py_modules": ["gcs://a.zip", "gcs://b.zip", "gcs://c.zip"], "pip": ["x"]}
        assert runtime_context.with_inherited_modules({"env_vars": {"A": "1"}}, {}) == {"env_vars": {"A": "1"}}

    def test_the_common_environment_is_overridden(self) -> None:
        common = {"pip": ["a"], "env_vars": {"A": "1", "B": "1"}}
        own = {"pip": ["b"], "env_vars": {"B": "2"}}
        assert runtime_context.merged_environments(common, own) == {"pip": ["b"], "env_vars": {"A": "1", "B": "2"}}
        assert runtime_context.merged_environments({}, {"pip": ["b"]}) == {"pip": ["b"]}


class Dashboard:
    """What Ray's client for jobs does, in memory."""

    def __init__(self) -> None:
        self.jobs: dict[str, SimpleNamespace] = {}

    def submit_job(self, **job: Any) -> str:
        name = job["submission_id"]
        if name in self.jobs:
            raise RuntimeError(f"Request failed with status code 500: job {name} already exists.")
        fields = {"status": "RUNNING", "message": "", "start_time": 1000 + len(self.jobs), "end_time": None}
        self.jobs[name] = SimpleNamespace(**fields, **job)
        return str(name)

    def get_job_info(self, name: str) -> Any:
        if name not in self.jobs:
            raise RuntimeError("Request failed with status code 404: no such job.")
        return self.jobs[name]

    def list_jobs(self) -> list[Any]:
        return list(reversed(self.jobs.values()))

    def get_job_logs(self, name: str) -> str:
        return f"log of {name}\n"

    def stop_job(self, name: str) -> None:
        self.jobs[name].status = "STOPPED"


@pytest.mark.usefixtures("inside")
class TestJobs:
    @pytest.fixture
    def dashboard(self) -> Dashboard:
        return Dashboard()

    @pytest.fixture
    def native(self, dashboard: Dashboard) -> NativeJobs:
        native = NativeJobs()
        native._client = dashboard
        return native

    def test_a_job_gets_its_identity_as_variables(self, native: NativeJobs, dashboard: Dashboard) -> None:
        env = {"env_vars": {"A": "1"}, "py_modules": ["gcs://mine.zip"]}
        job_id = native.submit_job("ls", runtime_env=env, metadata={"team": "x"}, entrypoint_resources={"CPU": 1})
        sent = dashboard.jobs[job_id]
        assert sent.runtime_env["py_modules"] == [runtime_context.own_package(), "gcs://mine.zip"]
        assert sent.runtime_env["env_vars"] == {
            "A": "1",
            "RMCS_CLUSTER": "mac",
            "RMCS_TASK_ID": job_id,
            "RMCS_ATTEMPT": "1",
            "RMCS_FENCE": "7",
        }
        assert (sent.metadata, sent.entrypoint_num_cpus) == ({"team": "x", "rmcs_parent": "task-1"}, 1.0)
        info = native.job_info(job_id)
        assert (info["status"], info["metadata"], info["parent"]) == ("RUNNING", {"team": "x"}, "task-1")
        assert info["started_at"] == 1.0

    def test_the_same_key_is_the_same_job(self, native: NativeJobs, dashboard: Dashboard) -> None:
        assert native.submit_job("ls", idempotency_key="k") == native.submit_job("ls", idempotency_key="k")
        assert native.submit_job("ls", submission_id="own") == native.submit_job("ls", submission_id="own") == "own"
        assert len(dashboard.jobs) == 2
        assert native.submit_job("ls", idempotency_key="other") != native.submit_job("ls", idempotency_key="k")

    def test_a_job_of_others_is_not_ours(self, native: NativeJobs, dashboard: Dashboard) -> None:
        dashboard.submit_job(submission_id="theirs", entrypoint="ls", metadata={})
        mine = native.submit_job("ls")
        assert [row["job_id"] for row in native.list_jobs()] == [mine]
        for ask in (native.job_info, native.job_logs, native.stop, lambda one: list(native.follow_job_logs(one))):
            for stranger in ("theirs", "nobody"):
                with pytest.raises(UnknownItemError, match=stranger):
                    ask(stranger)
        with pytest.raises(TaskSubmissionError, match="already exists"):
            native.submit_job("ls", submission_id="theirs")
        assert dashboard.jobs["theirs"].status == "RUNNING"

    def test_it_is_followed_to_its_end(
        self, native: NativeJobs, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_id = native.submit_job("ls")
        monkeypatch.setattr(jobs, "POLL_S", 0.001)
        pieces = native.follow_job_logs(job_id)
        assert next(pieces) == f"log of {job_id}\n"
        native.stop(job_id)
        assert list(pieces) == []

    @pytest.mark.parametrize("option", ["retries", "retry_lost", "run_timeout", "require_tags"])
    def test_what_ray_does_not_do(self, native: NativeJobs, dashboard: Dashboard, option: str) -> None:
        with pytest.raises(ConfigurationError, match=f"{option} cannot be used inside"):
            native.submit_job("ls", **{option: 1})
        assert dashboard.jobs == {}

    def test_wrong_arguments(self, native: NativeJobs) -> None:
        with pytest.raises(ConfigurationError, match="entrypoint is ''"):
            native.submit_job("")
        with pytest.raises(ConfigurationError, match="'linux' was requested"):
            native.submit_job("ls", preferred_cluster="linux")

    def test_a_dashboard_that_is_gone(self, native: NativeJobs, monkeypatch: pytest.MonkeyPatch) -> None:
        def gone(*_: object) -> None:
            raise ConnectionError("refused")

        monkeypatch.setattr(native._client, "list_jobs", gone)
        with pytest.raises(ClusterConnectionError, match="cluster 'mac' cannot be used from inside"):
            native.list_jobs()


def test_what_cannot_be_loaded_inside_raises_when_it_is_used() -> None:
    local_fleet = placeholder_class("LocalFleet", ImportError("No module named 'psutil'"))
    with pytest.raises(SchedulerError, match="LocalFleet cannot be used inside a cluster: No module named 'psutil'"):
        local_fleet("a", num_cpus=2)


def test_nothing_of_this_needs_ray() -> None:
    assert "ray" not in sys.modules


@pytest.mark.parametrize("wrong", [3, None])
def test_explain_inside_refuses_what_is_no_item(wrong: Any) -> None:
    scheduler = object.__new__(NativeScheduler)
    with pytest.raises(ConfigurationError, match=f"explain was given {wrong!r}, which is not an item"):
        scheduler.explain(wrong)
