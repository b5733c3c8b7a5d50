"""GangSubmission: builds a gang's TaskDescription from a program's arguments: validated, pickled, with an id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.actor_options import without_task_options
from ray_multicluster_scheduler.app.client_api.actors.class_methods import MethodShape, is_asynchronous, methods_of
from ray_multicluster_scheduler.app.client_api.arguments.arguments import (
    check_arguments,
    pickled,
    prepare_arguments,
    runtime_env_for,
    source_names,
    unique_actors,
)
from ray_multicluster_scheduler.app.client_api.gangs.member import GangMember, as_member
from ray_multicluster_scheduler.app.client_api.options import common_fields, fields_from, joins_equal_item, start_time
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_class import is_class, make_remote_class
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_function import RemoteFunction, as_remote_function
from ray_multicluster_scheduler.app.client_api.submission.task_template import PickledFunction, make_template
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.home_paths import find_in_arguments
from ray_multicluster_scheduler.common.model import (
    GangDescription,
    MemberDescription,
    TaskDescription,
    mentions_cpu,
    parse_resources,
)
from ray_multicluster_scheduler.common.model.task_description import content_key
from ray_multicluster_scheduler.common.several_returns import STREAMING
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import Item, MemberItem
from ray_multicluster_scheduler.scheduler.scheduler_core.payload_cache import PayloadCache


@dataclass(frozen=True, slots=True)
class _Part:
    """A validated and pickled member. ``methods``: those of an actor's class."""

    description: MemberDescription
    function: PickledFunction
    arguments: Arguments
    home_paths: tuple[str, ...]
    methods: Mapping[str, MethodShape]


@dataclass(frozen=True, slots=True)
class NewGangItem:
    """A validated gang, whose payload is not in the payload cache yet."""

    task: TaskDescription
    parts: Sequence[_Part]
    arguments: Arguments

    def put_payloads(self, payload_cache: PayloadCache) -> TaskDescription:
        """Store the payload in the payload cache; returns the description."""
        for part in self.parts:
            payload_cache.hold(part.description.function_digest, part.function.data)
            payload_cache.hold(part.description.arguments_digest, part.arguments.data)
        return self.task


class GangSubmission:
    """Builds descriptions of gangs for one control plane. Thread-safe."""

    def __init__(self, settings: Settings, clock: Clock, homes: Sequence[str], new_id: Callable[[str], str]) -> None:
        self._settings, self._clock, self._homes, self._new_id = settings, clock, homes, new_id

    def describe(
        self, members: Iterable[Any], strategy: Any, tags: Sequence[str] | None, options: Mapping[str, Any]
    ) -> NewGangItem:
        """Raises ConfigurationError for a wrong argument, TaskSubmissionError for a value that cannot be pickled."""
        given = _check_members(members)
        of = _kind_of(given)
        if "resource_requirements" in options:
            raise ConfigurationError(
                "resource_requirements belongs to each member, not to the gang.",
                next_step='write member(f, resource_requirements={"CPU": 2})',
            )
        if of == "actor":
            keys = [key for key in ("idempotency_key", "dedup") if options.get(key) not in (None, "none")]
            if keys:
                raise ConfigurationError(
                    f"{keys[0]} does not apply to a gang of actors: each call makes a new one.",
                    next_step="keep the handles that the first call returned",
                )
            options = without_task_options(options)
        elif "ready_timeout" in options:
            raise ConfigurationError("ready_timeout does not apply to tasks.", next_step="use run_timeout")
        fields = common_fields(options, "gang", self._settings, tags)
        parts = [self._actor(one) if of == "actor" else self._task(one) for one in given]
        described = tuple(part.description for part in parts)
        gang = GangDescription(described, strategy, of, **fields_from(GangDescription, options))
        arguments = _together([part.arguments for part in parts])
        modules = {module for part in parts for module in part.function.modules}
        fields["runtime_env"] = runtime_env_for(arguments, fields["runtime_env"], modules)
        now = self._clock.now()
        task = TaskDescription(
            id=self._new_id("gang"),
            kind="gang",
            name=options.get("name") or _name_of(parts),
            requirements=gang.total,
            arguments_bytes=sum(part.description.arguments_bytes for part in parts),
            home_paths=tuple(dict.fromkeys(path for part in parts for path in part.home_paths)),
            gang=gang,
            submitted_at=now,
            start_after=start_time(options.get("start_after"), now),
            **({**fields, "retries": 0} if of == "actor" else fields),
        )
        if of == "task" and joins_equal_item(options, self._settings):
            task = replace(task, content_key=content_key(task, source_names(arguments)))
        return NewGangItem(task, parts, arguments)

    def _task(self, member: GangMember) -> _Part:
        fn = as_remote_function(member.target)
        if isinstance(fn, RemoteFunction):
            _refuse_own_options(fn.__qualname__, fn.submit_options)
        template = make_template(fn, member.resource_requirements, None, None, {}, self._settings)
        if template.num_returns == STREAMING:
            raise ConfigurationError(
                f"{template.name} is a generator, which cannot be a member of a gang.", next_step="return a list"
            )
        args, kwargs = check_arguments(member.args, member.kwargs, template.name)
        amounts = template.fields["requirements"]
        return self._part(template.name, template.function, args, kwargs, amounts)

    def _actor(self, member: GangMember) -> _Part:
        cls = make_remote_class(member.target, {})
        _refuse_own_options(cls.__qualname__, cls.submit_options)
        needs = member.resource_requirements
        needs = cls.submit_options.get("resource_requirements") if needs is None else needs
        amounts = parse_resources(needs)
        if not mentions_cpu(needs):
            amounts = {"CPU": 1.0, **amounts}
        name = cls.__qualname__
        args, kwargs = check_arguments(member.args, member.kwargs, name)
        data, modules, captured = pickled(cls.shipped, f"the class {name}")
        if cls.by_name:
            modules = {*modules, cls.__module__}
        function = PickledFunction(data, digest_of(data), frozenset(modules), captured)
        part = self._part(name, function, args, kwargs, amounts)
        described = replace(part.description, asynchronous=is_asynchronous(cls.cls))
        return replace(part, description=described, methods=methods_of(cls.cls))

    def _part(
        self,
        name: str,
        function: PickledFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        amounts: Mapping[str, float],
    ) -> _Part:
        arguments = prepare_arguments(args, kwargs, name, function.handles)
        described = MemberDescription(
            name=name,
            requirements=amounts,
            function_digest=function.digest,
            arguments_digest=digest_of(arguments.data),
            arguments_bytes=len(arguments.data),
            objects=len(arguments.sources),
        )
        return _Part(described, function, arguments, find_in_arguments(args, kwargs, self._homes), {})


def _check_members(members: object) -> list[GangMember]:
    if isinstance(members, (str, bytes, GangMember)) or not isinstance(members, Iterable):
        raise ConfigurationError(
            f"submit_gang was given {members!r}, not a list of members.",
            next_step="write submit_gang([member(f, 1), member(f, 2)])",
        )
    return [as_member(one, index) for index, one in enumerate(members)]


def _kind_of(members: Sequence[GangMember]) -> Literal["task", "actor"]:
    classes = [is_class(one.target) for one in members]
    if any(classes) and not all(classes):
        raise ConfigurationError(
            "A gang is all tasks or all actors, and this one has both functions and classes.",
            next_step="make two gangs, or let methods of the actors do what the functions would",
        )
    return "actor" if any(classes) else "task"


def _refuse_own_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options of a member except its resources: all others apply to the gang. Raises ConfigurationError."""
    own = sorted(options.keys() - {"resource_requirements"})
    if own:
        raise ConfigurationError(
            f"{name} has the option{'s' if len(own) > 1 else ''} {', '.join(own)}, which gang members cannot have.",
            next_step="give such options to submit_gang, for all members; only resources are per member",
        )


def _name_of(parts: Sequence[_Part]) -> str:
    names = dict.fromkeys(part.description.name for part in parts)
    return f"{len(parts)} × {next(iter(names))}" if len(names) == 1 else ", ".join(names)


def _together(all_arguments: Sequence[Arguments]) -> Arguments:
    """Combine the modules, value sources and actors of all members' arguments."""
    return Arguments(
        b"",
        frozenset(module for one in all_arguments for module in one.modules),
        tuple(source for one in all_arguments for source in one.sources),
        unique_actors([actor for one in all_arguments for actor in one.actors]),
    )


def handles_of(gang: Item, runtime: ControlPlane, methods: Sequence[Mapping[str, MethodShape]]) -> list[ActorHandle]:
    """Return one actor handle per member, in order."""
    described = gang.task.gang
    members = () if described is None else described.members
    items = [MemberItem(gang, index, member) for index, member in enumerate(members)]
    return [ActorHandle(runtime.calls_of(item), runtime, of) for item, of in zip(items, methods, strict=True)]
