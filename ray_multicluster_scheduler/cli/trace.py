"""`rmcs trace`: what a service has run, for `rmcs simulate --trace`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def trace(
    out: Annotated[Path, typer.Argument(help="The CSV file to write.")],
    address: Annotated[
        str | None, typer.Option("--address", help="The service; default: RMCS_ADDRESS, or the one here.")
    ] = None,
) -> None:
    """Write what a service has run as a trace: would another fleet, or another policy, have done better?"""
    import asyncio

    from ray_multicluster_scheduler.app.client_api.remote.credentials import find_credentials
    from ray_multicluster_scheduler.app.client_api.remote.find_service import find_service
    from ray_multicluster_scheduler.app.client_api.remote.service_client import ServiceClient
    from ray_multicluster_scheduler.common.exception import ConfigurationError

    found = find_service(address, os.environ)
    if found is None:
        raise ConfigurationError("No service runs here.", next_step="start one with `rmcs up`, or give its --address")

    async def fetch(service: str) -> bytes:
        client = ServiceClient(service, find_credentials(service, os.environ))
        try:
            return await client.fetch("/api/v1/trace", patience=2.0)
        finally:
            await client.close()

    data = asyncio.run(fetch(found))
    try:
        out.write_bytes(data)
    except OSError as error:
        raise ConfigurationError(
            f"{out} cannot be written: {error.strerror}.", next_step="give another file"
        ) from error
    items = len(data.splitlines()) - 1
    typer.echo(f"rmcs: {items} items in {out}; try: rmcs simulate --trace {out}", err=True)
