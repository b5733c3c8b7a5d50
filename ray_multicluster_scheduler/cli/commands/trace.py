"""`rmcs trace`: write what a service has run to a CSV file, for `rmcs simulate --trace`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ray_multicluster_scheduler.cli.arguments.options import ReplaceFiles
from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit, notify
from ray_multicluster_scheduler.cli.output_files import check_new, write_file
from ray_multicluster_scheduler.cli.service.client import Address, api_path, connect

_NEXT = "rmcs simulate --trace {} --nodes 'NAME=4x{{CPU:16}}'"


def trace(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The CSV file to write.")],
    force: ReplaceFiles = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Write what a service has run to a trace, a CSV file.

    `rmcs simulate --trace` shows whether another fleet, or another policy, would have done better.
    """
    check_new(out, force=force)
    csv = connect(address, answer_s=600.0).fetch(api_path("trace"))
    write_file(out, lambda draft: draft.write_bytes(csv))
    items = max(0, len(csv.splitlines()) - 1)
    if items:
        count = f"{items} item{'' if items == 1 else 's'}"
        notify(f"{count} in {out}; simulate another fleet with: {_NEXT.format(shlex.quote(str(out)))}")
    else:
        notify(f"{out} contains no item: nothing has run yet, or all of it was deleted")
    emit({"file": str(out), "items": items}, output, lambda: str(out))
