"""Pickling between programs, which have PyPI's cloudpickle, and clusters, which have Ray's copy of it.

A pickle from a program refers to the module ``cloudpickle``, which a cluster lacks; one from a cluster refers to
``ray.cloudpickle``, which a program lacks. Both are the same library, so ``loads`` maps the module names. Mapping,
rather than shipping a second copy, keeps the identity of classes that are pickled by value: an instance of a class from
the caller's ``__main__`` comes back as an instance of that very class.
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

from ray_multicluster_scheduler.common.frames import Blob, Pieces, join_short
from ray_multicluster_scheduler.common.imported_names import names_in_code

_LOCAL, _RAY = "cloudpickle", "ray.cloudpickle"
_PLAIN = frozenset({type(None), bool, int, float})
_TEXTS = frozenset({str, bytes})
_SMALL, _SHORT = 40, 64 * 1024
_LONG = 1024 * 1024


def _inside_ray() -> bool:
    """Whether this is a process of a cluster, where Ray is imported before our code."""
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
    """Pickle anything that cloudpickle can; functions and classes that cannot be imported are pickled by value."""
    return b"".join(dumps_pieces(value))


def dumps_pieces(value: object) -> Pieces:
    """The same pickle in pieces: large bytes and buffers in the value are not copied, so it must not change yet."""
    if _is_small_and_plain(value):
        return [pickle.dumps(value, protocol=5)]
    file = _PiecesFile()
    importlib.import_module(_RAY if _inside_ray() else _LOCAL).dump(value, file, protocol=5)
    return join_short(file.pieces, _LONG)


def dumps_with_modules(value: object, handles: list[Any] | None = None) -> tuple[bytes, set[str]]:
    """Pickle in a program, and return the modules that the cluster must be able to import to load and run it.

    Those are the modules of objects pickled by reference, and those that functions pickled by value import when they
    run. Handles inside of ``value`` are pickled as references, and added to ``handles``.
    """
    if _is_small_and_plain(value):
        return pickle.dumps(value, protocol=5), set()
    modules: set[str] = set()
    buffer = io.BytesIO()
    _recorder()(buffer, modules, [] if handles is None else handles).dump(value)
    return buffer.getvalue(), modules


def _is_small_and_plain(value: object) -> bool:
    """Whether it has a few numbers and texts only, as the arguments of most tasks: the plain pickler is faster."""
    pending = [value]
    for item in pending:  # grows during the loop
        kind = type(item)
        if kind in _PLAIN or (kind in _TEXTS and len(item) <= _SHORT):  # type: ignore[arg-type]  # a text or bytes
            continue
        if kind is not tuple and kind is not list and kind is not dict:
            return False
        if len(pending) + len(item) > _SMALL:  # type: ignore[arg-type]  # one of the three that have a length
            return False
        pending += item  # type: ignore[arg-type]  # … and can be iterated; of a dict these are the keys
        if kind is dict:
            pending += item.values()  # type: ignore[attr-defined]  # it is a dict
    return True


@functools.cache
def _recorder() -> Callable[[io.BytesIO, set[str], list[Any]], pickle.Pickler]:
    """The pickler that records modules of objects pickled by reference, and handles."""
    import cloudpickle  # noqa: PLC0415 - a cluster, which loads this module too, does not have it

    class Recorder(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        def __init__(self, buffer: io.BytesIO, modules: set[str], handles: list[Any]) -> None:
            super().__init__(buffer, protocol=5)
            self._modules, self._handles = modules, handles

        def reducer_override(self, obj: Any) -> Any:
            reduced = super().reducer_override(obj)
            reference = getattr(type(obj), "_rmcs_reference", None)
            if reference is not None:
                self._handles.append(obj)
                return reference(obj)
            if reduced is NotImplemented:
                self._note(_module_of(obj))
            elif isinstance(obj, types.FunctionType):
                # Pickled by value: its import statements run in the cluster.
                self._modules |= names_in_code(obj.__code__, obj.__globals__.get("__package__"))
            return reduced

        def _note(self, module: object) -> None:
            if isinstance(module, str) and module != "__main__":  # pickled by value
                self._modules.add(module)

    return Recorder


def _module_of(obj: Any) -> object:
    """The module from which the reader imports an object that is pickled by reference."""
    if isinstance(obj, types.ModuleType):
        return obj.__name__
    # An instance is in the module of its class, unless it has its own ``__module__``, as a decorated function does.
    return getattr(obj, "__module__", None) or type(obj).__module__


def loads(data: Blob) -> Any:
    """Unpickle what :func:`dumps` wrote in a program or in a cluster. ``data`` may also be another kind of buffer."""
    if isinstance(data, bytes) or len(data) <= _SHORT:
        return _Unpickler(io.BytesIO(data)).load()
    return _Unpickler(io.BufferedReader(_BufferFile(data))).load()


class _PiecesFile:
    """The file of a pickler: keeps what is written, without a copy."""

    def __init__(self) -> None:
        self.pieces: Pieces = []

    def write(self, data: Blob | pickle.PickleBuffer) -> None:
        self.pieces.append(data.raw() if isinstance(data, pickle.PickleBuffer) else data)


class _BufferFile(io.RawIOBase):
    """Reads a buffer, which ``io.BytesIO`` would copy first."""

    def __init__(self, data: Blob) -> None:
        self._rest = memoryview(data)

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]  # all that is ever passed
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
