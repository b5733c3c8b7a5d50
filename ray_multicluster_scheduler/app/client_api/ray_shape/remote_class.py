"""RemoteClass: the result of ``@remote`` on a class. Made by the decorator, submitted by the active scheduler.

Light to import: decorated classes are also loaded inside clusters, where their actors are plain Ray actors.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, NoReturn

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.actors.actor_options import actor_options
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_function import RemoteObject
from ray_multicluster_scheduler.common.exception import ConfigurationError


class RemoteClass(RemoteObject):
    """A class with options; ``C.remote(x)`` makes an actor of it on the best cluster and returns its handle at once.

    ``class D(C)`` inherits from the plain class, and D is a plain class; ``isinstance(x, C)`` tests for the plain
    class. Can be pickled, and used inside tasks and actors.
    """

    def __init__(self, cls: type, **options: Any) -> None:
        """Raises ConfigurationError if ``cls`` is not a class, and for unknown options."""
        if not isinstance(cls, type):
            raise ConfigurationError(
                f"{cls!r} ({type(cls).__name__}) is not a class.",
                next_step="pass the class itself, and the arguments of its constructor as args",
            )
        super().__init__(cls, options)
        self.cls = cls
        self.submit_options = actor_options(options)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Make an actor; its handle takes calls at once. Raises ConfigurationError, TaskSubmissionError."""
        return execution_context.active_scheduler().submit_actor_async(self, args, kwargs)

    def options(self, **options: Any) -> RemoteClass:
        """Return the same class with other options. Raises ConfigurationError."""
        view = RemoteClass(self.cls, **{**self.given_options, **options})
        view._base = self._base or self
        return view

    @property
    def shipped(self) -> Any:
        """The object to pickle for a cluster: a reference by name if it can be imported, else the class by value."""
        return _ClassOf(self._base or self) if self.by_name else self.cls

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        name = self.__name__
        raise TypeError(f"{name} is a remote class: make an actor with {name}.remote(…), an object with {name}.cls(…).")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (self.cls,)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self.cls)

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self.cls)


class _ClassOf:
    """Pickled as a reference to a RemoteClass; unpickled as the class in it."""

    def __init__(self, remote_class: RemoteClass) -> None:
        self._remote_class = remote_class

    def __reduce__(self) -> tuple[Any, ...]:
        return attrgetter("cls"), (self._remote_class,)


def is_class(target: object) -> bool:
    """Is it a class, plain or decorated by us or Ray?"""
    return isinstance(as_remote_class(target), (type, RemoteClass))


def make_remote_class(target: Any, options: Mapping[str, Any]) -> RemoteClass:
    """Make a RemoteClass; ``options`` take precedence over those of the class. Raises ConfigurationError."""
    target = as_remote_class(target)
    if isinstance(target, RemoteClass):
        return target.options(**options) if options else target
    return RemoteClass(target, **options)


def as_remote_class(cls: Any) -> Any:
    """Convert Ray's ActorClass with its options; return anything else unchanged. Does not import Ray."""
    theirs = getattr(sys.modules.get("ray.actor"), "ActorClass", None)
    if theirs is None or not isinstance(cls, theirs):
        return cls
    modified = cls.__ray_metadata__.modified_class
    plain = getattr(modified, "__ray_actor_class__", modified)
    return RemoteClass(plain, **{key: value for key, value in cls._default_options.items() if value is not None})
