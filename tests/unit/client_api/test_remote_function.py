"""@remote on functions: options checked when they are given, pickled once, and at home on both sides."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.handles.handle import PartHandle, TaskHandle
from ray_multicluster_scheduler.app.client_api.ray_shape.remote import remote
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_class import RemoteClass
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_function import RemoteFunction, as_remote_function
from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import ConfigurationError, TaskSubmissionError
from tests.unit.client_api.control_plane import CLOSED_PORT


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[UnifiedScheduler]:
    """The shared one; its brain hears nothing, so whatever is submitted stays as it is."""
    monkeypatch.setenv("RMCS_CLUSTERS", f"clusters: [{{name: mac, dashboard: '{CLOSED_PORT}'}}]")
    before = execution_context.exchange_shared(None)
    shared = execution_context.shared()
    runtime, _ = shared._started()
    monkeypatch.setattr(runtime.manager, "post", lambda _: None)
    yield shared
    for item in runtime.unfinished():
        runtime._end_abandoned("TaskCancelledError", f"the test is over ({item.id})")
    execution_context.exchange_shared(before)
    shared.shutdown()


def payload(scheduler: UnifiedScheduler, handle: Any) -> tuple[Any, Any, Any]:
    """Function and arguments as the worker would load them, and the description."""
    runtime = scheduler._started()[0]
    described = handle._item.task
    args, kwargs = pickling.loads(runtime.payload_cache.get(described.arguments_digest))
    return pickling.loads(runtime.payload_cache.get(described.function_digest)), (args, kwargs), described


class TestDecorating:
    def test_with_and_without_options(self) -> None:
        @remote
        def plain(x: int) -> int:
            """Its text."""
            return x

        @remote(num_cpus=2, tags=["arm64"], num_returns=2)
        def with_options() -> None: ...

        assert isinstance(plain, RemoteFunction)
        assert (plain.__name__, plain.__doc__, plain.__module__) == ("plain", "Its text.", __name__)
        assert plain.function(3) == 3
        assert with_options.submit_options == {
            "resource_requirements": {"CPU": 2},
            "tags": ["arm64"],
            "num_returns": 2,
        }
        assert isinstance(remote()(plain.function), RemoteFunction)
        assert "plain" in repr(plain)
        assert not hasattr(plain, "bind")

    def test_classes_become_remote_classes(self) -> None:
        class Counter: ...

        assert isinstance(remote(Counter), RemoteClass)
        assert isinstance(remote(num_cpus=1)(Counter), RemoteClass)

    def test_calling_it_says_what_to_do(self) -> None:
        @remote
        def square(x: int) -> int:
            return x * x

        with pytest.raises(TypeError, match=r"square\.remote\(…\)"):
            square(2)

    @pytest.mark.parametrize("wrong", [5, "text", None])
    def test_non_function_is_rejected(self, wrong: object) -> None:
        with pytest.raises(ConfigurationError, match="neither a function nor a class"):
            remote(wrong)

    def test_options_are_keywords_alone(self) -> None:
        with pytest.raises(ConfigurationError, match="options alone"):
            remote(len, num_cpus=1)
        with pytest.raises(ConfigurationError, match="did you mean num_cpus"):
            remote(num_cpu=1)(len)

    def test_decorated_twice_is_decorated_with_all_options(self) -> None:
        once = remote(num_cpus=2, tags=["a"])(len)
        assert remote(once) is once
        assert remote(num_cpus=3)(once).submit_options == {"resource_requirements": {"CPU": 3}, "tags": ["a"]}

    def test_a_view_has_other_options_and_the_same_function(self) -> None:
        base = remote(num_cpus=2)(len)
        view = base.options(num_gpus=1).options(name="mine")
        assert view.submit_options == {"resource_requirements": {"CPU": 2, "GPU": 1}, "name": "mine"}
        assert base.submit_options == {"resource_requirements": {"CPU": 2}}
        assert view.pickled is base.pickled
        with pytest.raises(ConfigurationError):
            base.options(nonsense=1)


class TestCalling:
    def test_a_call_is_a_task(self, scheduler: UnifiedScheduler) -> None:
        @remote(num_cpus=0.5, tags=["arm64"], priority=3, max_retries=1)
        def add(a: int, b: int) -> int:
            return a + b

        handle = add.remote(1, b=2)
        assert isinstance(handle, TaskHandle)
        function, (args, kwargs), described = payload(scheduler, handle)
        assert function(*args, **kwargs) == 3
        assert (described.requirements, described.tags, described.priority) == ({"CPU": 0.5}, ("arm64",), 3)
        assert (described.crash_retries, described.name.rpartition(".")[2]) == (1, "add")
        _, _, other = payload(scheduler, add.options(num_cpus=2, name="mine").remote(1, 2))
        assert (other.requirements, other.name, other.priority) == ({"CPU": 2.0}, "mine", 3)

    def test_the_fields_of_pools(self, scheduler: UnifiedScheduler) -> None:
        @remote(labels={"team": "nlp"}, pool="nlp", priority=2.5)
        def add(a: int, b: int) -> int:
            return a + b

        _, _, described = payload(scheduler, add.options(preemptible=True, min_runtime_s=5).remote(1, 2))
        assert described.pool_fields == {
            "labels": {"team": "nlp"},
            "pool": "nlp",
            "preemptible": True,
            "min_runtime_s": 5.0,
        }
        assert described.priority == 2.5

    def test_the_function_is_pickled_once(self, scheduler: UnifiedScheduler) -> None:
        pickled = []

        class Noticed:
            def __reduce__(self) -> Any:
                pickled.append(1)
                return (int, ())

        noticed = Noticed()

        @remote
        def f() -> object:
            return noticed

        handles = [f.remote(), f.remote(), f.options(num_cpus=2).remote()]
        assert len(pickled) == 1
        assert len({one._item.task.function_digest for one in handles}) == 1

    def test_it_captures_what_is_there_at_the_first_call(self, scheduler: UnifiedScheduler) -> None:
        later = {}

        @remote
        def f() -> object:
            return later

        later["a"] = 1
        function, _, _ = payload(scheduler, f.remote())
        assert function() == {"a": 1}

    def test_the_cluster_that_is_preferred_now_counts_at_each_call(self, scheduler: UnifiedScheduler) -> None:
        f = remote(lambda: None)
        assert f.remote()._item.task.preferred_cluster is None
        with ClusterContextManager.use("mac"):
            assert f.remote()._item.task.preferred_cluster == "mac"
        assert f.options(preferred_cluster="mac").remote()._item.task.preferred_cluster == "mac"

    def test_several_returns(self, scheduler: UnifiedScheduler) -> None:
        @remote(num_returns=2)
        def both(n: int) -> list[int]:
            return list(range(n))

        first, second = both.remote(2)
        assert isinstance(first, PartHandle)
        assert (first.id, second.id) == (f"{first._item.id}.0", f"{first._item.id}.1")
        function, _, _ = payload(scheduler, first)
        assert function(2) == (0, 1)
        for number in (1, 3):
            with pytest.raises(ValueError, match=rf"both returned {number} values, but num_returns is 2"):
                function(number)
        with pytest.raises(ValueError, match="returned a NoneType, but num_returns is 2"):
            payload(scheduler, remote(num_returns=2)(lambda: None).remote()[0])[0]()
        assert both.options(num_returns=0).remote(2) is None
        assert isinstance(both.options(num_returns=1).remote(2), TaskHandle)

    def test_it_is_accepted_wherever_a_function_is(self, scheduler: UnifiedScheduler) -> None:
        f = remote(num_cpus=2, tags=["a"])(lambda x: x)
        described = scheduler.submit_task_async(f, (1,))._item.task
        assert (described.requirements, described.tags) == ({"CPU": 2.0}, ("a",))
        described = scheduler.submit_task_async(
            f, (1,), resource_requirements={"CPU": 1}, tags=[], retries=2
        )._item.task
        assert (described.requirements, described.tags, described.retries) == ({"CPU": 1.0}, (), 2)

    def test_what_cannot_be_a_task_is_refused_at_the_call(self, scheduler: UnifiedScheduler) -> None:
        async def coroutine() -> int:
            return 1

        with pytest.raises(ConfigurationError, match="is an async function"):
            remote(coroutine).remote()
        with pytest.raises(TaskSubmissionError, match="argument 0 of .*, a lock"):
            remote(lambda x: x).remote(threading.Lock())


class TestPickling:
    def test_by_value_with_a_call_of_itself(self) -> None:
        @remote(num_cpus=2)
        def countdown(n: int) -> object:
            return countdown if n == 0 else n

        loaded = pickling.loads(pickling.dumps(countdown))
        assert loaded is not countdown
        assert loaded.submit_options == {"resource_requirements": {"CPU": 2}}
        assert loaded.function(0) is loaded, "it mentions itself, not a copy"
        assert loaded.__qualname__ == countdown.__qualname__
        shipped = pickling.loads(pickling.dumps(countdown.shipped))
        assert isinstance(shipped, types.FunctionType)
        assert shipped(0).function is shipped
        view = pickling.loads(pickling.dumps(countdown.options(num_cpus=3)))
        assert view.submit_options == {"resource_requirements": {"CPU": 3}}

    @pytest.fixture
    def users(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        (tmp_path / "users_remote.py").write_text(
            textwrap.dedent("""
                from ray_multicluster_scheduler.app.client_api.ray_shape.remote import remote

                STATE = []

                @remote(num_cpus=2)
                def f(x):
                    STATE.append(x)
                    return len(STATE)
            """)
        )
        monkeypatch.syspath_prepend(tmp_path)
        import users_remote

        yield users_remote
        del sys.modules["users_remote"]

    def test_by_name_in_a_module_of_the_user(self, users: Any) -> None:
        for dumps in (pickle.dumps, pickling.dumps):
            data = dumps(users.f)
            assert pickling.loads(data) is users.f
            assert len(data) < 100
        view = pickling.loads(pickling.dumps(users.f.options(num_cpus=3)))
        assert view._base is users.f

    def test_its_module_is_shipped_and_its_function_found_there(self, users: Any, scheduler: UnifiedScheduler) -> None:
        for one in (users.f, users.f.options(num_cpus=1)):
            function, _, described = payload(scheduler, one.remote(1))
            assert function is users.f.function
            assert described.runtime_env["py_modules"] == [users.__file__]
        again = payload(scheduler, scheduler.submit_task_async(lambda: users.f, ()))[2]
        assert again.runtime_env["py_modules"] == [users.__file__], "also where it is only captured"

    def test_loading_one_needs_nothing_that_a_cluster_lacks(self) -> None:
        """The standard library and this package: no third-party module is imported by the decorator."""
        program = """
            import sys
            from ray_multicluster_scheduler.app.client_api.ray_shape.remote import remote
            from ray_multicluster_scheduler.app.client_api.ray_shape import ray_shape

            f = remote(num_cpus=1)(len)
            f.options(num_gpus=1)
            print([name for name in ("pydantic", "aiohttp", "cloudpickle", "yaml", "ray") if name in sys.modules])
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
        assert done.stdout.strip() == "[]", done.stderr


class TestOfRay:
    @pytest.fixture
    def ray_function(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Something that looks like Ray's; the real one is tested on real clusters."""
        module: Any = types.ModuleType("ray.remote_function")

        class RayRemoteFunction:
            def __init__(self, function: Any, **options: Any) -> None:
                self._function, self._default_options = function, options

        RayRemoteFunction.__name__ = "RemoteFunction"
        module.RemoteFunction = RayRemoteFunction
        monkeypatch.setitem(sys.modules, "ray.remote_function", module)
        return RayRemoteFunction

    def test_it_is_taken_with_its_options(self, ray_function: Any, scheduler: UnifiedScheduler) -> None:
        theirs = ray_function(lambda x: x + 1, num_cpus=2, num_gpus=1, max_calls=1)
        ours = remote(theirs)
        assert isinstance(ours, RemoteFunction)
        assert ours.submit_options == {"resource_requirements": {"CPU": 2, "GPU": 1}}
        assert remote(tags=["a"])(theirs).submit_options["tags"] == ["a"]
        function, _, described = payload(scheduler, scheduler.submit_task_async(theirs, (1,)))
        assert function(1) == 2
        assert described.requirements == {"CPU": 2.0, "GPU": 1.0}

    def test_others_are_left_alone(self) -> None:
        assert as_remote_function(len) is len
