"""What commands that ask a service have in common."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from typing import Annotated, Any

import typer


class Output(StrEnum):
    table = "table"
    json = "json"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="Text for people, JSON for programs.")]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="The service; default: RMCS_ADDRESS, or the one that runs here.")
]


def ask(address: str | None, method: str, path: str, said: dict[str, Any] | None = None) -> Any:
    """The answer, as JSON. Raises ConfigurationError if no service runs, and what the service answers with."""
    import asyncio

    from ray_multicluster_scheduler.app.client_api.remote.credentials import find_credentials
    from ray_multicluster_scheduler.app.client_api.remote.find_service import find_service
    from ray_multicluster_scheduler.app.client_api.remote.service_client import ServiceClient
    from ray_multicluster_scheduler.common.exception import ConfigurationError

    found = find_service(address, os.environ)
    if found is None:
        raise ConfigurationError("No service runs here.", next_step="start one with `rmcs up`, or give its --address")

    async def ask_it(service: str) -> Any:
        client = ServiceClient(service, find_credentials(service, os.environ))
        try:
            return await client.once(method, path, said)
        finally:
            await client.close()

    return asyncio.run(ask_it(found))


def echo_json(answer: Any) -> None:
    typer.echo(json.dumps(answer, indent=2, ensure_ascii=False))
