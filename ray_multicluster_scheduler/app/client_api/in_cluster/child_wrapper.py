"""What runs around a child, in the child's worker: it tells whose child this is.

Functions of a job need none of this: its environment, which Ray gives to all of the job's workers, says it. A worker
that runs a task serves many items, so there the item travels with the call.
"""

from __future__ import annotations

import threading
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from ray_multicluster_scheduler.app.client_api.in_cluster import actor_init_errors
from ray_multicluster_scheduler.common import current_item
from ray_multicluster_scheduler.common.current_item import CurrentItem

Whose: TypeAlias = tuple[str, int, int, str]
"""A CurrentItem as plain data, which Ray sends for less."""

T = TypeVar("T")
_NAMES = ("__name__", "__qualname__", "__module__", "__doc__")


def whose(item: CurrentItem) -> Whose:
    """To be given to a child as its first argument."""
    return item.id, item.attempt, item.fence, item.cluster


def function_of_child(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with whose child it is as its first argument."""

    def child(parent: Whose, /, *args: Any, **kwargs: Any) -> Any:
        before = current_item.get_current()
        current_item.set_current(CurrentItem(*parent))
        try:
            return fn(*args, **kwargs)
        finally:
            current_item.set_current(before)

    # Not functools.wraps: Ray would follow it to the signature of `fn`, which lacks the first argument.
    for name in _NAMES:
        setattr(child, name, getattr(fn, name, getattr(type(fn), name, None)))
    return child


def class_of_child(cls: Any) -> type:
    """The same class, with whose child it is as the first argument of its constructor. Raises TypeError for a class
    that cannot be inherited from without further ado."""

    constructor: Any = cls.__init__

    def construct(self: Any, parent: Whose, /, *args: Any, **kwargs: Any) -> None:
        current_item.set_current(CurrentItem(*parent))  # for good: an actor has its process for itself
        try:
            constructor(self, *args, **kwargs)
        except Exception as error:
            actor_init_errors.leave(error)
            raise

    def body(namespace: dict[str, Any]) -> None:
        namespace["__init__"] = construct
        namespace.update({name: getattr(cls, name, None) for name in _NAMES if name != "__name__"})

    return types.new_class(cls.__name__, (cls,), exec_body=body)


class Made(Generic[T]):
    """What was made of a function or class, kept for the next time; the least used is dropped. Safe from any thread.

    What is kept is kept alive, with all that its closure holds, also when nobody else has it any more: what Ray made of
    a function refers to it. So it is not many.
    """

    def __init__(self, most: int = 100) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, Any], tuple[Any, T]] = OrderedDict()

    def get(self, of: Any, key: Any, make: Callable[[], T]) -> T:
        """The one for this key, made now if there is none."""
        place = id(of), key  # by identity: not everything that can be called can be hashed
        with self._lock:
            kept = self._kept.get(place)
            if kept is not None:
                self._kept.move_to_end(place)
                return kept[1]
        made = make()
        with self._lock:
            self._kept[place] = of, made  # with what it is of, whose id is so not given to another
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made
