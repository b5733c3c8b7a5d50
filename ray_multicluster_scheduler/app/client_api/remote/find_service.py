"""Where the service is that a program is to use, if there is one."""

from __future__ import annotations

from collections.abc import Mapping

from ray_multicluster_scheduler.app.client_api.remote.service_address import (
    checked_address,
    named_service,
    service_here,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.notices import notify
from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
from ray_multicluster_scheduler.control_plane.store.state_folder import DATABASE, holder

_log = get_logger(__name__)


def find_service(address: str | None, environ: Mapping[str, str]) -> str | None:
    """The one that was named, else that of ``RMCS_ADDRESS``, else the one that runs here; None: there is none.

    Raises ConfigurationError for what is no address.
    """
    named = named_service(address, environ)
    if named is not None:
        return named
    found = service_here(environ)
    if found is None:
        home = rmcs_home(environ)
        if (home / DATABASE).exists():
            notify(
                f"the service of {home} does not run (rmcs up starts it): this program has a control plane of its own"
            )
        return None
    _log.info("the service that runs here is used: %s", found)
    return found


def where_now(control_plane: str, environ: Mapping[str, str]) -> str | None:
    """Where this very control plane listens, if it runs here: it may have been started again on another port."""
    said = holder(rmcs_home(environ))
    if said is None or said.get("control_plane") != control_plane or not said.get("address"):
        return None
    return checked_address(str(said["address"]), "server.json")
