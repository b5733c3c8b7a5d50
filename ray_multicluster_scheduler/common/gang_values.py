"""Joins the pickled results of a gang's members into one pickle without loading any of them.

The agent in the cluster does this: it never unpickles users' values. Pickles name this module; do not move it.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from ray_multicluster_scheduler.common import pickling


def joined(parts: Sequence[bytes]) -> bytes:
    """A pickle of the list of values; each of ``parts`` is the pickle of one."""
    return pickle.dumps(_Values(parts), protocol=5)


def load_all(parts: Sequence[bytes]) -> list[Any]:
    """Loads such a pickle: called by ``pickle.loads``."""
    return [pickling.loads(part) for part in parts]


class _Values:
    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return load_all, (list(self._parts),)
