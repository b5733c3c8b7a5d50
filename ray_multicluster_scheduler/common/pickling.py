"""Pickles that cross between an interpreter with PyPI's cloudpickle and one with Ray's copy of it.

What our side writes names ``cloudpickle``, which a cluster does not have; what a cluster writes names
``ray.cloudpickle``, which our side does not have. Both are the same library, so names are mapped when
reading. Mapping, rather than shipping a second copy, keeps the identity of classes that are sent by value:
an instance of a class from the caller's ``__main__`` comes back as an instance of that very class.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

_LOCAL, _RAY = "cloudpickle", "ray.cloudpickle"


def _inside_ray() -> bool:
    """Is this a process of a cluster? There Ray is loaded before any of our code is."""
    return "ray" in sys.modules and _RAY in sys.modules


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == _LOCAL or module.startswith(_LOCAL + "."):
            if _inside_ray():
                module = _RAY + module[len(_LOCAL) :]
        elif (module == _RAY or module.startswith(_RAY + ".")) and not _inside_ray():
            module = _LOCAL + module[len(_RAY) :]
        return super().find_class(module, name)


def dumps(value: object) -> bytes:
    """Pickle anything that cloudpickle can; functions and classes that are not importable go by value."""
    writer: Callable[..., bytes] = importlib.import_module(_RAY if _inside_ray() else _LOCAL).dumps
    return writer(value, protocol=5)


def dumps_with_modules(value: object) -> tuple[bytes, set[str]]:
    """Pickle on our side, and name the modules that the other side must be able to import for it."""
    modules: set[str] = set()
    buffer = io.BytesIO()
    _recorder()(buffer, modules).dump(value)
    return buffer.getvalue(), modules


@functools.cache
def _recorder() -> Callable[[io.BytesIO, set[str]], pickle.Pickler]:
    """The class that writes down what goes by name."""
    import cloudpickle  # noqa: PLC0415 - a cluster, which loads this module too, does not have it

    class Recorder(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        def __init__(self, buffer: io.BytesIO, modules: set[str]) -> None:
            super().__init__(buffer, protocol=5)
            self._modules = modules

        def reducer_override(self, obj: Any) -> Any:
            reduced = super().reducer_override(obj)
            if reduced is NotImplemented:
                # Functions and classes that cloudpickle does not take apart go by name; so do modules.
                if isinstance(obj, (types.FunctionType, type)):
                    self._modules.add(obj.__module__)
                elif isinstance(obj, types.ModuleType):
                    self._modules.add(obj.__name__)
            return reduced

    return Recorder


def loads(data: bytes | bytearray | memoryview) -> Any:
    """The opposite, for what either side wrote."""
    return _Unpickler(io.BytesIO(data)).load()
