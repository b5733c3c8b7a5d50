"""`rmcs clusters cordon`, `drain`, `uncordon`, `declare-dead`: sent to a service, or to the programs that run now."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import Reason, Timeout
from ray_multicluster_scheduler.cli.arguments.selectors import UNFINISHED
from ray_multicluster_scheduler.cli.layout.output import Format, Output, ProgressLine, emit_folded, notify
from ray_multicluster_scheduler.cli.service.client import Address, Service, api_path, connect, find_address
from ray_multicluster_scheduler.cli.service.item_wait import POLL_S, Deadline, retry_while_away
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError

_MAX_NAMED = 10
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a cluster.", autocompletion=completion.clusters)]


def cordon(name: Name, output: Output = Format.table, address: Address = None) -> None:
    """Send nothing new to a cluster; its items continue."""
    _change(name, "cordon", _cordoned, _left_items, output, address)


def drain(name: Name, timeout: Timeout = None, output: Output = Format.table, address: Address = None) -> None:
    """Cordon a cluster, and wait until it is empty.

    Shows what is still there. Ctrl+C ends the wait, and so does --timeout (exit code 101); the cluster stays cordoned.
    Without a service, your programs that run now get the request; repeat it to see what is still there.
    """
    if find_address(address) is None:
        _change(name, "drain", _cordoned, _left_items, output, address)
        return
    service = connect(address)
    answer = service.post(api_path("clusters", name, "drain"), {"timeout": 0})
    if not answer["drained"]:
        try:
            answer = _wait_until_drained(service, name, answer, timeout)
        except KeyboardInterrupt:
            notify(f"{name} stays cordoned; open it again with `rmcs clusters uncordon {name}`")
            raise typer.Exit(exit_codes.INTERRUPTED) from None
    emit_folded(answer, output, lambda: f"{name} takes no new work; {_left_items(answer['items'])}")
    if not answer["drained"]:
        raise typer.Exit(exit_codes.NOT_FINISHED)


def uncordon(name: Name, output: Output = Format.table, address: Address = None) -> None:
    """Let new work go to a cluster again."""
    _change(name, "uncordon", _uncordoned, _present_items, output, address)


def declare_dead(
    name: Name,
    reason: Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Even if it answers. Drain it too, or it is used again at once.")
    ] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Declare a cluster dead: its items stop waiting for it.

    Items that may be retried go elsewhere, the others fail. Refused for a cluster that answers. Without a service, your
    programs that run now get the request.
    """
    body = {"reason": reason, "force": force}
    _change(name, "declare-dead", lambda _: "is declared dead", _former_items, output, address, body)


def _change(
    name: str,
    verb: str,
    outcome: Callable[[bool], str],
    describe_items: Callable[[Sequence[str]], str],
    output: Format,
    address: str | None,
    body: dict[str, Any] | None = None,
) -> None:
    """``outcome`` of whether anything changed, and ``describe_items`` of the ids there, are printed."""
    if find_address(address) is not None:
        service = connect(address)
        send = service.post if verb == "declare-dead" else service.change  # that answer has no "changed"
        answer = send(api_path("clusters", name, verb), body)
        changed = answer.get("changed", True)
        emit_folded(answer, output, lambda: f"{name} {outcome(changed)}; {describe_items(answer['items'])}")
        return
    known = {"cordon": "drain"}.get(verb, verb)  # a program does not wait when it drains
    _change_programs(name, {known.replace("-", "_"): name, **(body or {})}, outcome, describe_items, output)


def _change_programs(
    name: str,
    query: Mapping[str, Any],
    outcome: Callable[[bool], str],
    describe_items: Callable[[Sequence[str]], str],
    output: Format,
) -> None:
    """Send it to all programs and print what each did. Raises SchedulerError if one refused or did not answer,
    NotFoundError if no program has such a cluster, ConfigurationError if there is no program."""
    from ray_multicluster_scheduler.cli.service.local_programs import query_all

    programs: list[dict[str, Any]] = []
    unknown, refused, steps = [], [], []
    for pid, answer in query_all(query):
        if "items" in answer:
            one = {"process": pid, "command": answer["program"]["command"], "items": list(answer["items"])}
            programs.append({**one, "changed": bool(answer.get("changed", True))})
        elif answer.get("error") == "ConfigurationError":
            unknown.append(f"process {pid}: {answer.get('message')}")
        else:
            refused.append(f"process {pid}: {answer.get('message') or 'no answer'}")
            steps.append(str(answer.get("next_step") or ""))
    if programs:
        lines = [
            f"process {one['process']} ({one['command']}): {name} {outcome(one['changed'])}; "
            + describe_items(one["items"])
            for one in programs
        ]
        emit_folded({"programs": programs}, output, lambda: "\n".join(lines))
    if refused:
        raise SchedulerError("\n".join(refused), cluster=name, next_step=next(filter(None, steps), ""))
    if not programs:
        raise _no_program(name, unknown)


def _no_program(name: str, unknown: Sequence[str]) -> ConfigurationError:
    from ray_multicluster_scheduler.control_plane.config.home import run_folder

    if unknown:
        step = "use the name of a cluster of theirs"
        return exit_codes.NotFoundError("\n".join(unknown), cluster=name, next_step=step)
    return ConfigurationError(
        f"No program of yours with a scheduler runs now (there is none in {run_folder()}), so nothing has to be done.",
        cluster=name,
        next_step="repeat it while the program runs that has work there, and with the same RMCS_HOME",
    )


def _wait_until_drained(service: Service, name: str, answer: dict[str, Any], timeout: float | None) -> dict[str, Any]:
    """The state when it is empty, or the time is over. Raises SchedulerError if it is uncordoned meanwhile."""
    deadline = Deadline(timeout)
    with ProgressLine() as progress:
        while not deadline.over:
            progress.show(f"{name} takes no new work; {_left_items(answer['items'])}")
            time.sleep(deadline.at_most(POLL_S))
            drained = retry_while_away(lambda: service.get(api_path("clusters", name, "drained")))["drained"]
            if drained is None:
                raise SchedulerError(
                    f"Cluster {name!r} was not drained: it was opened for new work again.",
                    cluster=name,
                    next_step="drain it again, if nothing should go there",
                )
            # The last item may end between the two requests; the next poll then finds the cluster drained.
            answer = {"drained": drained, "items": [] if drained else _items_on(service, name) or answer["items"]}
            if drained:
                break
    return answer


def _items_on(service: Service, name: str) -> list[str]:
    states = ",".join(UNFINISHED)
    rows = retry_while_away(lambda: service.rows(api_path("items"), "items", 1000, cluster=name, state=states))
    return [str(row["id"]) for row in rows]


def _cordoned(changed: bool) -> str:
    return "takes no new work" if changed else "is cordoned already"


def _uncordoned(changed: bool) -> str:
    return "is not cordoned any more" if changed else "was not cordoned"


def _left_items(items: Sequence[str]) -> str:
    return f"{named(items, 'is', 'are')} still there" if items else "nothing is there any more"


def _present_items(items: Sequence[str]) -> str:
    return f"{named(items, 'is', 'are')} there" if items else "nothing is there"


def _former_items(items: Sequence[str]) -> str:
    return f"{named(items, 'was', 'were')} there (see `rmcs explain ID`)" if items else "nothing was there"


def named(items: Sequence[str], one: str, many: str) -> str:
    """The first ids, how many more there are, and the verb."""
    more = f" and {len(items) - _MAX_NAMED} more" if len(items) > _MAX_NAMED else ""
    return f"{', '.join(items[:_MAX_NAMED])}{more} {one if len(items) == 1 else many}"
