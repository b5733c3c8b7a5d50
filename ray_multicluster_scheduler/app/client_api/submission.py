"""From what a user's program gives to a TaskDescription: checked, pickled, with an id."""

from __future__ import annotations

import inspect
import itertools
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from ray_multicluster_scheduler.app.client_api.options import ItemOptions, JobOptions, common_fields
from ray_multicluster_scheduler.app.client_api.user_modules import modules_to_ship
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, TaskSubmissionError
from ray_multicluster_scheduler.common.home_paths import find_home_paths
from ray_multicluster_scheduler.common.model import JobDescription, TaskDescription, parse_resources
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_shelf import PayloadShelf

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class Submission:
    """Makes descriptions for one control plane. Safe from any thread."""

    def __init__(
        self, settings: Settings, shelf: PayloadShelf, clock: Clock, control_plane: str, homes: Sequence[str]
    ) -> None:
        self._settings, self._shelf, self._clock = settings, shelf, clock
        self._control_plane, self._homes = control_plane, homes
        self._numbers = itertools.count(1)

    def task(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        resource_requirements: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = None,
        **options: Unpack[ItemOptions],
    ) -> TaskDescription:
        """Raises ConfigurationError for a wrong argument, TaskSubmissionError for what cannot be pickled."""
        name = _check_function(fn, options.get("name"))
        positional, named = _check_arguments(args, kwargs, name)
        fields = common_fields(options, ItemOptions, self._settings, tags)
        needs = parse_resources(resource_requirements)
        if not _mentions_cpu(resource_requirements):
            needs = {"CPU": 1.0, **needs}
        function, function_modules = _pickled(fn, f"the function {name}")
        arguments, argument_modules = _pickled_arguments(positional, named, name)
        fields["runtime_env"] = _with_modules(fields["runtime_env"], function_modules | argument_modules)
        task = TaskDescription(
            id=self._new_id("task"),
            kind="task",
            name=name,
            requirements=needs,
            home_paths=find_home_paths((positional, named), self._homes),
            submitted_at=self._clock.now(),
            **fields,
        )
        # Only now that nothing can be refused any more: nobody would take it off the shelf.
        return replace(task, function_digest=self._shelf.put(function), arguments_digest=self._shelf.put(arguments))

    def job(self, entrypoint: str, **options: Unpack[JobOptions]) -> TaskDescription:
        """Raises ConfigurationError for a wrong argument."""
        if not isinstance(entrypoint, str) or not entrypoint.strip() or "\0" in entrypoint:
            raise ConfigurationError(
                f"The entrypoint is {entrypoint!r}.", next_step='give a shell command, for example "python train.py"'
            )
        fields = common_fields(options, JobOptions, self._settings, options.get("tags"))
        submission_id = options.get("submission_id")
        job = JobDescription(
            entrypoint=entrypoint,
            metadata=_check_metadata(options.get("metadata")),
            entrypoint_resources=parse_resources(options.get("entrypoint_resources"), what="entrypoint_resources"),
        )
        return TaskDescription(
            id=_check_job_id(submission_id) if submission_id is not None else self._new_id("job"),
            kind="job",
            name=options.get("name") or entrypoint,
            requirements=parse_resources(options.get("resource_requirements")),
            job=job,
            submitted_at=self._clock.now(),
            **fields,
        )

    def _new_id(self, kind: str) -> str:
        return f"{kind}-{self._control_plane}-{next(self._numbers)}"


def new_control_plane_id() -> str:
    """Short enough to type, long enough not to meet another one on the same cluster."""
    return secrets.token_hex(4)


def _check_function(fn: object, name: str | None) -> str:
    if not callable(fn):
        raise ConfigurationError(
            f"submit_task was given {fn!r} ({type(fn).__name__}), which is not a function.",
            next_step="pass the function itself: submit_task(f, args=(1, 2)), not submit_task(f(1, 2))",
        )
    shown = name or getattr(fn, "__qualname__", None) or type(fn).__qualname__
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(
            f"{shown} is a generator; its values cannot be streamed across clusters.",
            next_step="return a list, or submit one task per piece",
        )
    if inspect.iscoroutinefunction(fn):
        raise ConfigurationError(
            f"{shown} is an async function; a Ray task is a plain one.",
            next_step="wrap it: def run(): return asyncio.run(f())",
        )
    return str(shown)


def _check_arguments(args: object, kwargs: object, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise ConfigurationError(
            f"args of {name} is {type(args).__name__}, not a tuple or list.",
            next_step="write args=(x,) for one argument",
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ConfigurationError(
            f"kwargs of {name} is {type(kwargs).__name__}, not a mapping.", next_step='write kwargs={"x": 1}'
        )
    return tuple(args), dict(kwargs or {})


def _mentions_cpu(given: Mapping[str, Any] | None) -> bool:
    return any(str(key).lower() in ("cpu", "num_cpus") for key in given or ())


def _pickled(value: object, what: str) -> tuple[bytes, set[str]]:
    try:
        return pickling.dumps_with_modules(value)
    except SchedulerError:
        raise  # it says itself what to do
    except Exception as error:
        raise TaskSubmissionError(
            f"{what} cannot be pickled: {type(error).__name__}: {error}.",
            next_step="open files, locks and connections inside the function instead of passing or capturing them",
        ) from error


def _pickled_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> tuple[bytes, set[str]]:
    try:
        return pickling.dumps_with_modules((args, kwargs))
    except Exception:  # noqa: BLE001 - told again below, with the name of the argument
        # Find the one that is to blame; if each can be pickled by itself, blame all of them.
        for place, value in [*enumerate(args), *kwargs.items()]:
            _pickled(value, f"argument {place!r} of {name}, a {type(value).__qualname__},")
        return _pickled((args, kwargs), f"the arguments of {name}, taken together,")


def _with_modules(runtime_env: dict[str, Any], modules: set[str]) -> dict[str, Any]:
    """The user's own modules are shipped by default; a caller who says what to ship is taken at his word."""
    if "working_dir" in runtime_env or "py_modules" in runtime_env:
        return runtime_env
    places = modules_to_ship(modules)
    return {**runtime_env, "py_modules": [str(place) for place in places]} if places else runtime_env


def _check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ConfigurationError(f"metadata is {metadata!r}.", next_step='give a mapping such as {"team": "weather"}')
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ConfigurationError(
                f"metadata[{key!r}] is {value!r}.", next_step="Ray keeps text only: give str keys and str values"
            )
    return dict(metadata or {})


def _check_job_id(submission_id: object) -> str:
    if not isinstance(submission_id, str) or not _JOB_ID.fullmatch(submission_id):
        raise ConfigurationError(
            f"submission_id is {submission_id!r}.",
            next_step="use letters, digits, '_', '-' and '.', at most 128 of them",
        )
    return submission_id
