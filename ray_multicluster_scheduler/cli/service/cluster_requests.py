"""What an operator tells every running program about a cluster, and what each of them says to that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray_multicluster_scheduler.cli.layout.output import Format, emit_words

MOST_NAMED = 10


def order(
    cluster: str,
    question: Mapping[str, Any],
    done: Callable[[bool], str],
    told: Callable[[Sequence[str]], str],
    output: Format,
) -> None:
    """Ask all, and print what each did: ``done`` says what, if it was not so before, and ``told`` what that means for
    its items there.

    Raises SchedulerError if one refused or did not answer, NotThereError if no program has such a cluster,
    ConfigurationError if there is no program.
    """
    from ray_multicluster_scheduler.cli.service.local_programs import ask_all
    from ray_multicluster_scheduler.common.exception import SchedulerError

    obeyed: list[dict[str, Any]] = []
    strangers, refused, steps = [], [], []
    for pid, answer in ask_all(question):
        if "items" in answer:
            one = {"process": pid, "command": answer["program"]["command"], "items": list(answer["items"])}
            obeyed.append({**one, "changed": bool(answer.get("changed", True))})
        elif answer.get("error") == "ConfigurationError":
            strangers.append(f"process {pid}: {answer.get('message')}")
        else:
            refused.append(f"process {pid}: {answer.get('message') or 'no answer'}")
            steps.append(str(answer.get("next_step") or ""))
    if obeyed:
        lines = [
            f"process {one['process']} ({one['command']}): {cluster} {done(one['changed'])}; {told(one['items'])}"
            for one in obeyed
        ]
        emit_words({"programs": obeyed}, output, lambda: "\n".join(lines))
    if refused:
        raise SchedulerError("\n".join(refused), cluster=cluster, next_step=next(filter(None, steps), ""))
    if not obeyed:
        raise _nobody_has(cluster, strangers)


def named(items: Sequence[str], one: str, many: str) -> str:
    """Some of them by their ids, and the word for one or for many."""
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return f"{', '.join(items[:MOST_NAMED])}{more} {one if len(items) == 1 else many}"


def _nobody_has(cluster: str, strangers: Sequence[str]) -> Exception:
    from ray_multicluster_scheduler.cli.exit_codes import NotThereError
    from ray_multicluster_scheduler.common.exception import ConfigurationError
    from ray_multicluster_scheduler.control_plane.config.run_folder import run_folder

    if strangers:
        return NotThereError("\n".join(strangers), cluster=cluster, next_step="use the name of a cluster of theirs")
    return ConfigurationError(
        f"No program of yours with a scheduler runs now (there is none in {run_folder()}), so nobody has to be told.",
        cluster=cluster,
        next_step="run it while the program runs that has work there, and with the same RMCS_HOME",
    )
