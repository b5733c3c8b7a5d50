"""`rmcs trace`: what a service has run, for `rmcs simulate --trace`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, say
from ray_multicluster_scheduler.cli.service.client import Address, connect, path_of
from ray_multicluster_scheduler.cli.terminal.output_files import check_new, write_whole

_NEXT = "rmcs simulate --trace {} --nodes 'NAME=4x{{CPU:16}}'"


def trace(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The CSV file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Write what a service has run as a trace, a CSV file.

    Would another fleet, or another policy, have done better? `rmcs simulate --trace` tells.
    """
    check_new(out, force=force)
    data = connect(address, answer_s=600.0).fetch(path_of("trace"))
    write_whole(out, lambda draft: draft.write_bytes(data))
    items = max(0, len(data.splitlines()) - 1)
    if items:
        many = f"{items} item{'' if items == 1 else 's'}"
        say(f"{many} in {out}; what would another fleet do with that? {_NEXT.format(shlex.quote(str(out)))}")
    else:
        say(f"{out} has no item in it: nothing has run yet, or all of it was forgotten")
    emit({"file": str(out), "items": items}, output, lambda: str(out))
