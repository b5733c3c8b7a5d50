"""`rmcs clusters cordon`, `drain`, `uncordon`, `declare-dead`: told to a service, or to the programs that run now."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.options import Reason
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit_words, say
from ray_multicluster_scheduler.cli.service.client import Address, connect, find, path_of
from ray_multicluster_scheduler.cli.service.item_wait import LOOK_AGAIN_S, Deadline, Timeout, patiently
from ray_multicluster_scheduler.cli.service.item_wait import Reason as ShownReason

if TYPE_CHECKING:
    from ray_multicluster_scheduler.cli.service.client import Service

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a cluster.", autocompletion=completion.clusters)]


def cordon(name: Name, output: Output = Format.table, address: Address = None) -> None:
    """Let nothing new go to a cluster; what is there goes on."""
    _order(name, "cordon", _closed, _still_there, output, address)


def drain(name: Name, timeout: Timeout = None, output: Output = Format.table, address: Address = None) -> None:
    """Cordon a cluster, and wait until nothing is there.

    What is still there is shown meanwhile. Ctrl+C ends the wait, and so does --timeout (exit code 101); the cluster
    stays cordoned. Without a service, your programs that run now are told; do it again to see what is still there.
    """
    if find(address) is None:
        _order(name, "drain", _closed, _still_there, output, address)
        return
    service = connect(address)
    answer = service.post(path_of("clusters", name, "drain"), {"timeout": 0})
    if not answer["drained"]:
        try:
            answer = _drained(service, name, answer, timeout)
        except KeyboardInterrupt:
            say(f"{name} stays cordoned; open it again with `rmcs clusters uncordon {name}`")
            raise typer.Exit(exit_codes.INTERRUPTED) from None
    emit_words(answer, output, lambda: f"{name} takes no new work; {_still_there(answer['items'])}")
    if not answer["drained"]:
        raise typer.Exit(exit_codes.NOT_FINISHED)


def uncordon(name: Name, output: Output = Format.table, address: Address = None) -> None:
    """Let new work go to a cluster again."""
    _order(name, "uncordon", _open, _there, output, address)


def declare_dead(
    name: Name,
    reason: Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Even if it answers. Drain it too, or it is used again at once.")
    ] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Say that a cluster is dead, so that nobody waits for it.

    What may be tried again goes elsewhere, the rest fails. A cluster that answers is refused. Without a service, your
    programs that run now are told.
    """
    said = {"reason": reason, "force": force}
    _order(name, "declare-dead", lambda _: "is taken for dead", _was_there, output, address, said)


def _order(
    name: str,
    verb: str,
    done: Callable[[bool], str],
    told: Callable[[Sequence[str]], str],
    output: Format,
    address: str | None,
    said: dict[str, Any] | None = None,
) -> None:
    """``done`` says what became of the cluster, if it was not so before, and ``told`` what that means for the items
    there."""
    if find(address) is not None:
        service = connect(address)
        ask = service.post if verb == "declare-dead" else service.order  # that is not told of a dead one
        answer = ask(path_of("clusters", name, verb), said)
        emit_words(answer, output, lambda: f"{name} {done(answer.get('changed', True))}; {told(answer['items'])}")
        return
    from ray_multicluster_scheduler.cli.service.cluster_requests import order

    known = {"cordon": "drain"}.get(verb, verb)  # a program that is told to drain does not wait
    order(name, {known.replace("-", "_"): name, **(said or {})}, done, told, output)


def _drained(service: Service, name: str, answer: dict[str, Any], timeout: float | None) -> dict[str, Any]:
    """When it is empty, or the time is over. Raises SchedulerError when somebody opens it meanwhile."""
    from ray_multicluster_scheduler.common.exception import SchedulerError

    deadline = Deadline(timeout)
    with ShownReason() as reason:
        while not deadline.over:
            reason.show(f"{name} takes no new work; {_still_there(answer['items'])}")
            left = deadline.left()
            time.sleep(LOOK_AGAIN_S if left is None else min(LOOK_AGAIN_S, left))
            now = patiently(lambda: service.get(path_of("clusters", name, "drained")))["drained"]
            if now is None:
                raise SchedulerError(
                    f"Cluster {name!r} was not drained: somebody opened it for new work again.",
                    cluster=name,
                    next_step="drain it again, if nothing should go there",
                )
            # The last of them may end between the two questions; the next look then finds the cluster drained.
            answer = {"drained": now, "items": [] if now else _items_on(service, name) or answer["items"]}
            if now:
                break
    return answer


def _items_on(service: Service, name: str) -> list[str]:
    from ray_multicluster_scheduler.cli.arguments.selectors import UNFINISHED

    rows = patiently(lambda: service.rows(path_of("items"), "items", 1000, cluster=name, state=",".join(UNFINISHED)))
    return [str(row["id"]) for row in rows]


def _closed(changed: bool) -> str:
    return "takes no new work" if changed else "is cordoned already"


def _open(changed: bool) -> str:
    return "is not cordoned any more" if changed else "was not cordoned"


def _still_there(items: Sequence[str]) -> str:
    from ray_multicluster_scheduler.cli.service.cluster_requests import named

    return f"{named(items, 'is', 'are')} still there" if items else "nothing is there any more"


def _there(items: Sequence[str]) -> str:
    from ray_multicluster_scheduler.cli.service.cluster_requests import named

    return f"{named(items, 'is', 'are')} there" if items else "nothing is there"


def _was_there(items: Sequence[str]) -> str:
    from ray_multicluster_scheduler.cli.service.cluster_requests import named

    return f"{named(items, 'was', 'were')} there (see `rmcs explain ID`)" if items else "nothing was there"
