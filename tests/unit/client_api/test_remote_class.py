"""@remote on a class: options, inheritance, and how it travels."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_class import (
    RemoteClass,
    as_remote_class,
    is_class,
    make_remote_class,
)
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.exception import ConfigurationError
from tests.unit.client_api.actor_plane import Counter


class TestOptions:
    def test_rays_words_become_ours(self) -> None:
        cls = RemoteClass(Counter, num_cpus=2, num_gpus=1, memory=100, resources={"tpu": 1}, max_restarts=3, name="n")
        assert cls.submit_options == {
            "resource_requirements": {"CPU": 2, "GPU": 1, "memory": 100, "tpu": 1},
            "max_restarts": 3,
            "name": "n",
        }

    def test_options_without_effect_are_accepted(self) -> None:
        given = {
            "max_task_retries": 0,
            "namespace": None,
            "max_pending_calls": -1,
            "lifetime": "non_detached",
            "scheduling_strategy": "DEFAULT",
        }
        assert RemoteClass(Counter, **given).submit_options == {}

    @pytest.mark.parametrize(
        ("option", "hint"),
        [
            ({"max_task_retries": 2}, "never repeated"),
            ({"namespace": "mine"}, "leave it out"),
            ({"concurrency_groups": {"io": 2}}, "max_concurrency"),
            ({"retries": 2}, "constructor"),
            ({"num_returns": 2}, "@method(num_returns=2)"),
            ({"num_cpu": 2}, "did you mean num_cpus"),
            ({"max_calls": 1}, "leave it out"),
        ],
    )
    def test_what_is_not_there_is_refused(self, option: dict[str, Any], hint: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            RemoteClass(Counter, **option)
        assert hint in str(caught.value)

    def test_options_make_another_view(self) -> None:
        cls = RemoteClass(Counter, num_cpus=2, max_restarts=1)
        view = cls.options(num_cpus=1).options(name="n")
        assert view.submit_options == {"resource_requirements": {"CPU": 1}, "max_restarts": 1, "name": "n"}
        assert cls.submit_options == {"resource_requirements": {"CPU": 2}, "max_restarts": 1}
        assert view.cls is Counter


class TestAsAClass:
    def test_it_is_not_called(self) -> None:
        with pytest.raises(TypeError, match=r"Counter\.remote\("):
            RemoteClass(Counter)(1)

    def test_inheritance_is_from_the_class_itself(self) -> None:
        cls: Any = RemoteClass(Counter)

        class Double(cls):
            def add(self, amount: int = 1) -> int:
                return int(super().add(2 * amount))

        assert Double.__mro__[1] is Counter
        assert Double().add(2) == 4
        assert isinstance(Double(), cls)
        assert issubclass(Double, cls)
        assert not isinstance(5, cls)
        assert Double().pair() == (0, 1)

    def test_names(self) -> None:
        cls = RemoteClass(Counter)
        assert (cls.__name__, cls.__doc__) == ("Counter", Counter.__doc__)
        assert repr(cls) == "<RemoteClass tests.unit.client_api.actor_plane.Counter>"

    def test_remote_goes_to_the_side_that_we_are_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        side = SimpleNamespace(submit_actor_async=lambda cls, args, kwargs: (cls, args, kwargs))
        monkeypatch.setattr(execution_context, "active_scheduler", lambda: side)
        cls = RemoteClass(Counter)
        assert cls.remote(1, start=2) == (cls, (1,), {"start": 2})

    @pytest.mark.parametrize("wrong", [5, "Counter", len, Counter()])
    def test_only_classes(self, wrong: Any) -> None:
        assert not is_class(wrong)
        with pytest.raises(ConfigurationError, match="is not a class"):
            RemoteClass(wrong)


class TestTravel:
    def test_a_local_function_is_pickled_by_value(self) -> None:
        @RemoteClass
        class Local:
            def clone(self) -> Any:
                return Local  # refers to the decorated one, and so to itself

        view = Local.options(num_cpus=2)
        back = pickling.loads(pickling.dumps(view))
        assert back.submit_options == {"resource_requirements": {"CPU": 2}}
        assert back.cls().clone().cls is back.cls
        assert view.shipped is view.cls

    def test_one_of_a_module_is_pickled_by_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "users_actors.py").write_text(
            "from ray_multicluster_scheduler.app.client_api.ray_shape.remote_class import RemoteClass\n\n"
            "@RemoteClass\nclass Tally:\n    def add(self):\n        return 1\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        import users_actors  # type: ignore[import-not-found]  # written above

        cls = users_actors.Tally
        assert pickle.loads(pickle.dumps(cls)) is cls
        assert cls.by_name
        data = pickling.dumps(cls.options(num_cpus=1).shipped)
        assert pickling.loads(data) is cls.cls
        assert len(data) < 300, "the class itself does not go along"
        monkeypatch.delitem(sys.modules, "users_actors")


class TestRaysOwn:
    def test_a_class_of_ray_is_taken_with_its_options(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class ActorClass:
            pass

        module = ModuleType("ray.actor")
        module.ActorClass = ActorClass  # type: ignore[attr-defined]  # a stand-in
        monkeypatch.setitem(sys.modules, "ray.actor", module)
        theirs: Any = ActorClass()
        modified = type("Class", (Counter,), {"__ray_actor_class__": Counter})
        theirs.__ray_metadata__ = SimpleNamespace(modified_class=modified)
        theirs._default_options = {"num_cpus": 2, "max_restarts": 1, "name": None}
        ours = make_remote_class(theirs, {"max_restarts": 2})
        assert is_class(theirs)
        assert ours.cls is Counter
        assert ours.submit_options == {"resource_requirements": {"CPU": 2}, "max_restarts": 2}

    def test_others_are_left_alone(self) -> None:
        cls = RemoteClass(Counter)
        assert make_remote_class(cls, {}) is cls
        assert as_remote_class(Counter) is Counter
