"""What user code finds around it in a worker: its arguments as they were meant."""

from __future__ import annotations

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.object_argument import ObjectArgument
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.user_code import load_call


def test_objects_are_inserted_into_arguments_and_paths_moved() -> None:
    data = pickling.dumps(((ObjectArgument(0), "/home/a/x"), {"b": ObjectArgument(1, 1)}))
    objects = [pickling.dumps([1]), pickling.dumps({3, 4})]
    _, args, kwargs, _ = load_call((["/home/a"], "/Users/a"), data, objects, lambda: None)
    assert (list(args), kwargs) == ([[1], "/Users/a/x"], {"b": 4})


def test_a_method_call_has_its_number_of_return_values() -> None:
    for given, number in (((), 1), ((2,), 2), ((0,), 0)):
        code, args, kwargs, returns = load_call(None, pickling.dumps(((1,), {"b": 2}, *given)), (), lambda: "f")
        assert (code, args, kwargs, returns) == ("f", (1,), {"b": 2}, number)
