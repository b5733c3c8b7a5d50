"""`rmcs trace`: what a service has run, for `rmcs simulate --trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ray_multicluster_scheduler.cli.output import Format, Output, emit, say
from ray_multicluster_scheduler.cli.service import Address, connect, path_of


def trace(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The CSV file to write.")],
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Write what a service has run as a trace, a CSV file.

    Would another fleet, or another policy, have done better? `rmcs simulate --trace` tells.
    """
    from ray_multicluster_scheduler.common.exception import ConfigurationError

    data = connect(address, answer_s=600.0).fetch(path_of("trace"))
    try:
        out.write_bytes(data)
    except OSError as error:
        raise ConfigurationError(
            f"{out} cannot be written: {error.strerror}.", next_step="give another file"
        ) from error
    items = len(data.splitlines()) - 1
    say(f"{items} items in {out}; try: rmcs simulate --trace {out}")
    emit({"file": str(out), "items": items}, output, lambda: str(out))
