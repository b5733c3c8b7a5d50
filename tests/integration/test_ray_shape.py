"""Ray's syntax on two real clusters: decorated functions, handles as arguments, put, and whole Ray programs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import (
    UnifiedScheduler,
    as_completed,
    exceptions,
    get,
    put,
    remote,
    submit_task,
    submit_task_async,
    util,
    wait,
)
from ray_multicluster_scheduler.common.exception import TaskCancelledError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.util.queue import Empty, Full, Queue

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
pytestmark = pytest.mark.usefixtures("scheduler")


def adder() -> Any:
    @remote
    def add(a: int, b: int = 0) -> int:
        return a + b

    return add


class TestFunctions:
    def test_calls_options_and_several_returns(self) -> None:
        add = adder()
        assert get([add.remote(number, b=1) for number in range(20)]) == list(range(1, 21))
        mac = add.options(preferred_cluster="mac", fallback="wait", num_cpus=0.5).remote(1)
        assert (get(mac), mac.cluster) == (1, "mac")
        first, second = remote(num_returns=2)(lambda: ("a", "b")).remote()
        assert (get(second), get(first)) == ("b", "a")
        wrong = remote(num_returns=2)(lambda: [1, 2, 3]).remote()
        for part in wrong:
            with pytest.raises(ValueError, match="returned 3 values, but num_returns is 2"):
                get(part)
        assert remote(num_returns=0)(lambda: None).remote() is None

    def test_the_verbs_take_decorated_functions(self, scheduler: UnifiedScheduler) -> None:
        add = adder()
        assert submit_task(add, (1, 2)) == 3
        assert submit_task_async(add, (1,), {"b": 2}, tags=["arm64"]).result(60) == 3
        assert scheduler.submit_task(lambda: (1, 2), num_returns=2) == [1, 2]

    def test_a_function_of_a_users_module_is_pickled_by_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "users_remotely.py").write_text(
            textwrap.dedent("""
                from ray_multicluster_scheduler import remote

                def helper(x):
                    return x * 2

                @remote(num_cpus=1)
                def double(x):
                    return helper(x), __name__
            """)
        )
        monkeypatch.syspath_prepend(tmp_path)
        import users_remotely

        try:
            assert get(users_remotely.double.remote(4)) == (8, "users_remotely")
            assert get(users_remotely.double.options(num_cpus=0.5).remote(5)) == (10, "users_remotely")
        finally:
            del sys.modules["users_remotely"]

    def test_a_function_calls_itself_inside_the_cluster(self) -> None:
        @remote(num_cpus=0.1)
        def factorial(n: int) -> int:
            from ray_multicluster_scheduler import get as inner_get

            return 1 if n <= 1 else n * inner_get(factorial.remote(n - 1))

        assert get(factorial.remote(4), timeout=90) == 24


class TestHandlesAsArguments:
    def test_values_pass_between_tasks(self) -> None:
        add = adder()
        one = add.remote(1)
        total = add.remote(one, b=add.remote(one, 2))
        assert get(total) == 4
        chain = add.remote(0)
        for _ in range(30):
            chain = add.remote(chain, 1)
        assert get(chain, timeout=90) == 30

    def test_values_pass_between_clusters(self) -> None:
        add = adder()
        there = {"fallback": "wait"}
        first = add.options(preferred_cluster="linux", **there).remote(40)
        second = add.options(preferred_cluster="mac", **there).remote(first, 2)
        assert get(second) == 42
        assert (first.cluster, second.cluster) == ("linux", "mac")

    def test_an_error_passes_to_the_dependant(self) -> None:
        def fail() -> None:
            raise KeyError("the first one")

        add = adder()
        last = add.remote(add.remote(submit_task_async(fail)))
        with pytest.raises(KeyError, match="the first one") as caught:
            get(last)
        assert "needed the value as an argument" in "".join(caught.value.__notes__)

    def test_a_waiting_task_has_a_reason_and_can_be_cancelled(self) -> None:
        slow = submit_task_async(time.sleep, (30,))
        waiting = adder().remote(slow)
        assert waiting.explain()["sentence"] == f"waits for its argument {slow.id}"
        assert waiting.state is TaskState.PENDING
        other = adder().remote(slow)
        waiting.cancel()
        with pytest.raises(TaskCancelledError):
            waiting.result(10)
        slow.cancel()
        with pytest.raises(TaskCancelledError, match=slow.id):
            other.result(30)

    def test_a_nested_handle_of_a_failed_task_passes_its_error(self) -> None:
        def fail() -> None:
            raise KeyError("the nested one")

        with pytest.raises(KeyError, match="the nested one"):
            get(adder().remote([submit_task_async(fail)]))


class TestPut:
    def test_one_value_for_many_tasks_on_both_clusters(self, scheduler: UnifiedScheduler) -> None:
        big = put(list(range(200_000)))
        measure = remote(lambda values, n: (len(values), values[n]))
        handles = [
            measure.options(preferred_cluster=cluster, fallback="wait").remote(big, number)
            for number in range(10)
            for cluster in ("linux", "mac")
        ]
        assert get(handles, timeout=120) == [(200_000, number) for number in range(10) for _ in range(2)]
        assert {one.cluster for one in handles} == {"linux", "mac"}
        runtime, _ = scheduler._started()
        deadline = time.monotonic() + 10
        while big.digest in runtime.payload_cache._blobs:
            assert time.monotonic() < deadline, "nobody needs it in the payload cache any more"
            time.sleep(0.02)

    def test_a_value_of_a_users_class_ships_its_module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "users_shapes.py").write_text(
            "class Square:\n    def __init__(self, side):\n        self.side = side\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        import users_shapes

        try:
            assert get(remote(lambda shape: shape.side**2).remote(put(users_shapes.Square(3)))) == 9

            def make(side: int) -> Any:
                from users_shapes import Square

                return Square(side)

            made = submit_task_async(make, (4,))
            assert get(remote(lambda shape: shape.side**2).remote(made)) == 16, "so does a result"
        finally:
            del sys.modules["users_shapes"]


def test_wait_behaves_like_ray() -> None:
    add = adder()
    many = [add.remote(number) for number in range(10)]
    seen: list[int] = []
    rest = many
    while rest:
        over, rest = wait(rest, num_returns=1, timeout=60)
        assert len(over) == 1
        seen.append(get(over[0]))
    assert sorted(seen) == list(range(10))


def test_handles_arrive_as_they_end_outside_and_inside() -> None:
    def gate(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    slow = submit_task_async(gate, (60,))
    quick = [submit_task_async(gate, (0,)) for _ in range(3)]
    for function in (as_completed, futures.as_completed):
        arriving = function([slow, *quick], timeout=100)
        assert {next(arriving) for _ in range(3)} == set(quick)
    done, rest = futures.wait([slow, *quick], return_when=futures.FIRST_COMPLETED)
    assert (done, rest) == (set(quick), {slow})
    slow.cancel()

    def inside() -> list[float]:
        from concurrent import futures as standard

        from ray_multicluster_scheduler import as_completed, get, submit_task_async

        handles = [submit_task_async(lambda number=number: number, resource_requirements={"CPU": 0}) for number in "ab"]
        ours = sorted(get(one) for one in as_completed(handles, timeout=100))
        return ours + sorted(one.result() for one in standard.as_completed(handles, timeout=100))

    assert submit_task(inside) == ["a", "b", "a", "b"]


def test_rays_names_of_exceptions_catch_ours() -> None:
    def divide(by: int) -> float:
        return 1 / by

    def inside() -> str:
        import ray_multicluster_scheduler as ray

        try:
            ray.get(ray.remote(divide).options(num_cpus=0).remote(0))
        except ray.exceptions.RayTaskError as error:
            return f"{type(error).__name__} {isinstance(error, ZeroDivisionError)} {type(error.cause).__name__}"
        return "no error"

    assert submit_task(inside) == "ZeroDivisionError True ZeroDivisionError"
    with pytest.raises(exceptions.RayTaskError) as caught:
        get(remote(divide).remote(0))
    assert isinstance(caught.value, ZeroDivisionError)
    assert "divide" in caught.value.traceback_str
    with pytest.raises(exceptions.RayTaskError) as of_a_task:
        submit_task(lambda: inside() and divide(0))
    assert type(of_a_task.value.cause) is ZeroDivisionError
    slow = submit_task_async(time.sleep, (60,))
    with pytest.raises(exceptions.GetTimeoutError):
        get(slow, timeout=0.01)
    slow.cancel()
    with pytest.raises(exceptions.TaskCancelledError):
        get(slow, timeout=60)


def test_an_unknown_actor_is_a_value_error_outside_and_inside() -> None:
    def look() -> str:
        from ray_multicluster_scheduler import get_actor

        try:
            get_actor("missing")
        except ValueError as error:
            return type(error).__name__
        return "found"

    assert (look(), submit_task(look)) == ("UnknownItemError", "UnknownItemError")


def test_a_queue_between_a_program_and_its_tasks() -> None:
    queue = Queue(maxsize=2)

    def consume(source: Queue, number: int) -> list[int]:
        taken = [source.get(timeout=60) for _ in range(number)]
        try:
            source.get_nowait()
        except Empty:
            return taken
        return []

    consumer = remote(num_cpus=0.1)(consume).remote(queue, 4)
    for number in range(4):
        queue.put(number, timeout=60)
    assert get(consumer, timeout=60) == [0, 1, 2, 3]
    assert (queue.empty(), queue.qsize()) == (True, 0)
    for impossible in (queue.get_nowait, lambda: queue.get(timeout=0.01), lambda: queue.get_nowait_batch(1)):
        with pytest.raises(Empty):
            impossible()
    waiting = queue.actor.get.remote(None)
    queue.put("wakes it")
    assert get(waiting, timeout=60) == "wakes it"
    with pytest.raises(Full):
        queue.put_nowait_batch([1, 2, 3])
    queue.put_nowait_batch(["a", "b"])
    assert (len(queue), queue.full()) == (2, True)
    for impossible in (lambda: queue.put_nowait("c"), lambda: queue.put("c", timeout=0.01)):
        with pytest.raises(Full):
            impossible()
    assert queue.get_nowait_batch(2) == ["a", "b"]

    async def both() -> str:
        await queue.put_async("later")
        return str(await queue.get_async())

    assert asyncio.run(both()) == "later"
    with pytest.raises(ValueError, match="non-negative"):
        queue.get(timeout=-1)
    actor = queue.actor
    queue.shutdown()
    with pytest.raises(exceptions.RayActorError):
        get(actor.qsize.remote(), timeout=60)


def test_values_arrive_as_they_end() -> None:
    handles = [adder().remote(number) for number in range(3)]
    assert sorted(util.as_completed(handles)) == [0, 1, 2]
    assert set(util.as_completed(handles, yield_obj_refs=True)) == set(handles)


def test_fleet_queries() -> None:
    from ray_multicluster_scheduler.app.client_api.ray_shape import ray_shape

    assert ray_shape.is_initialized()
    assert {node["Cluster"] for node in ray_shape.nodes()} == {"linux", "mac"}
    assert ray_shape.cluster_resources()["CPU"] == 4.0
    assert 0 <= ray_shape.available_resources()["CPU"] <= 4.0


def test_names_of_ray_outside_and_inside() -> None:
    from ray_multicluster_scheduler.app.client_api.ray_shape import ray_shape

    def names_inside() -> tuple[list[Any], bool]:
        import ray_multicluster_scheduler as ray

        return ray.get_gpu_ids(), isinstance(ray.put(1), ray.ObjectRef)

    assert submit_task(names_inside) == ([], True)
    assert (ray_shape.get_gpu_ids(), isinstance(put(1), ray_shape.ObjectRef)) == ([], True)


def run(program: str, fleet_config: Path, tmp_path: Path, python: str = sys.executable, **env: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(program)
    environment = {**os.environ, "RMCS_CONFIG": str(fleet_config), "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run(
        [python, str(path)], capture_output=True, text=True, timeout=170, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("monte_carlo_pi", "pi is about 3.1371, from 160000 darts\n"),
        ("parameter_server", "slope 3.0, offset -1.0, after 30 updates\n"),
        ("word_count", "dog 4, fox 4, lazy 2, over 2\n"),
    ],
)
def test_a_ray_program_runs_after_changing_the_import(
    name: str, expected: str, config_path: Path, tmp_path: Path
) -> None:
    program = (HERE / "ported" / f"{name}.py").read_text()
    ported = program.replace("\nimport ray\n", "\nimport ray_multicluster_scheduler as ray\n")
    assert ported != program
    assert run(ported, config_path, tmp_path) == expected


PATTERNS = {
    "nested_tasks": "True\n",
    "limit_pending_tasks": "66 4\n",
    "tree_of_actors": "[3, 30]\n",
    "actor_pool": "[2, 4, 6, 8]\n10\n",
    "async_actor": "['met', 'met', 'met']\n",
    "pipeline": "30\nempty\n",
    "limit_running_tasks": "[1024, 1025, 1026]\n1024\n",
    "retries": "attempt 2 succeeded\n",
    "named_actor": "3\n6\n",
    "exceptions": "True ZeroDivisionError\nthe error of an argument\npong\nthe actor is dead\n",
    "signal_actor": "0 2\n[0, 1]\n",
    "large_argument": "[0, 297] True\n",
    "timeout_and_cancel": "too long\ncancelled\n",
    "nested_references": "([3, 33], 'small', {'scale': 2}, ['first', 'second'])\n"
    "[{'scale': 2}, [10, 11, 12]]\n[{'scale': 2}, [10, 11, 12]]\n",
    "closure_capture": "[9, 900]\n[20, 30]\n400\n",
    "progress_actor": "[0, 1, 2]\n15\n",
    "generator": "0\n1\n2\nok 0\nerror\nstopped\n[0, 1, 2, 0, 1, 2]\n[0, 1, 2]\n1 0 False 0\nlast 1\nTrue True\n",
    "generator_heap_memory": "[1000000, 1000000, 1000000]\nb'\\x00' 2\n[0, 1, 2, 3]\n[4, 5, 6, 7]\n[8, 9]\n[4, 4, 2]\n",
}


@pytest.mark.parametrize(("name", "expected"), PATTERNS.items())
def test_a_pattern_of_ray_runs_after_changing_the_import(
    name: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, on the shared scheduler, which Ray's programs find as they find a running Ray."""
    program = (HERE / "ported" / "patterns" / f"{name}.py").read_text()
    ported = program.replace("\nimport ray\n", "\nimport ray_multicluster_scheduler as ray\n")
    ported = ported.replace("\nfrom ray.util", "\nfrom ray_multicluster_scheduler.util")
    assert ported != program
    exec(compile(ported, f"{name}.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == expected


OF_RAY = """
    import ray

    import ray_multicluster_scheduler as rmcs

    @ray.remote(num_cpus=0.5)
    def square(x):
        return x * x

    @ray.remote
    class Counter:
        def __init__(self, start):
            self.value = start

        def add(self, amount):
            self.value += amount
            return self.value

    def main():
        print(rmcs.submit_task(square, (3,)))
        ours = rmcs.remote(square)
        print(rmcs.get([ours.remote(number) for number in range(4)]))
        counter = rmcs.submit_actor(Counter, (10,))
        print(rmcs.get(counter.add.remote(5)))
        print(rmcs.get(rmcs.remote(Counter).remote(1).add.remote(1)))
        assert not ray.is_initialized(), "our process is no driver of Ray"

    if __name__ == "__main__":
        main()
"""


def test_functions_decorated_by_ray_are_accepted(config_path: Path, ray_python: Path, tmp_path: Path) -> None:
    """In an interpreter that has Ray; our own dependencies are lent to it."""
    ours = next(place for place in sys.path if place.endswith("site-packages"))
    lent = tmp_path / "lent"
    lent.mkdir()
    for one in Path(ours).iterdir():
        if not one.name.startswith(("__editable__", "ray_multicluster", "_", "pip", "setuptools")):
            (lent / one.name).symlink_to(one)
    stdout = run(
        textwrap.dedent(OF_RAY),
        config_path,
        tmp_path,
        str(ray_python),
        PYTHONPATH=f"{ROOT}{os.pathsep}{lent}",
        RAY_ENABLE_AUTO_CONNECT="0",
    )
    assert stdout.splitlines() == ["9", "[0, 1, 4, 9]", "15", "2"]
