"""Replica: the actor of a deployment. It holds an object of the user's class, and passes it inputs from JSON."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from typing import Any


class Replica:
    """Calls ``infer`` of the object, or the object itself: with a list of inputs if ``batches``, else with one."""

    def __init__(self, cls: type, args: Sequence[Any], kwargs: Mapping[str, Any], batches: bool) -> None:
        model = cls(*args, **kwargs)
        self._infer = getattr(model, "infer", model)
        self._batches = batches

    def handle(self, data: bytes) -> bytes:
        """Answer a JSON list of inputs by a JSON list with one result or error for each."""
        inputs = json.loads(data)
        try:
            return self._answer(inputs, self._infer(inputs if self._batches else inputs[0]))
        except Exception as error:  # noqa: BLE001 # code of users; the error is the answer
            return _failed(inputs, error)

    def _answer(self, inputs: list[Any], value: Any) -> bytes:
        results = list(value) if self._batches else [value]
        if len(results) != len(inputs):
            raise ValueError(f"it was given {len(inputs)} inputs, and returned {len(results)} results")
        return json.dumps([{"result": one} for one in results], default=_plain).encode()


class AsyncReplica(Replica):
    """The same for a class whose method is ``async def``."""

    async def handle(self, data: bytes) -> bytes:  # type: ignore[override]  # Ray awaits methods that are async; its caller sees no difference
        inputs = json.loads(data)
        try:
            return self._answer(inputs, await self._infer(inputs if self._batches else inputs[0]))
        except Exception as error:  # noqa: BLE001 # code of users; the error is the answer
            return _failed(inputs, error)


def _failed(inputs: list[Any], error: Exception) -> bytes:
    traceback.print_exception(error)
    return json.dumps([{"error": f"{type(error).__name__}: {error}"}] * len(inputs)).encode()


def _plain(value: Any) -> Any:
    """Arrays and numbers of NumPy and its relatives as lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result has a {type(value).__name__}, which is not JSON")
