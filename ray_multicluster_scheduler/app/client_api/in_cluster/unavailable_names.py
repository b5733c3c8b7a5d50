"""What stands in for a public name that cannot be loaded inside a cluster, so that ``import *`` works there, too."""

from __future__ import annotations

from typing import NoReturn

from ray_multicluster_scheduler.common.exception import SchedulerError


def stand_in(name: str, error: ImportError) -> type:
    """A class of this name that says, when it is used, why it is not there."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise SchedulerError(
            f"{name} cannot be used inside of a cluster: {error}.",
            next_step="use it in the program outside; the verbs (submit_task, submit_actor, …) work inside, too",
        ) from error

    return type(name, (), {"__new__": refuse, "__doc__": f"{name} is not there inside of a cluster."})
