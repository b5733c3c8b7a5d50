"""The results of a gang's members as one pickle, made without loading any of them.

Whoever joins them is the agent in the cluster, which never unpickles what users return.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from ray_multicluster_scheduler.common import pickling


def joined(parts: Sequence[bytes]) -> bytes:
    """A pickle of the list of the values that ``parts`` are pickles of."""
    return pickle.dumps(_Values(parts), protocol=5)


def load_all(parts: Sequence[bytes]) -> list[Any]:
    """What such a pickle loads itself with."""
    return [pickling.loads(part) for part in parts]


class _Values:
    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return load_all, (list(self._parts),)
