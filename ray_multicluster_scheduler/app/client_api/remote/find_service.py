"""Where the service is that a program is to use, if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from ray_multicluster_scheduler.app.client_api.embedded.shutdown_story import say
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.config.loader import rmcs_home
from ray_multicluster_scheduler.control_plane.store.state_folder import holder

_log = get_logger(__name__)
ADDRESS = "RMCS_ADDRESS"


def find_service(address: str | None, environ: Mapping[str, str]) -> str | None:
    """The one that was named, else that of ``RMCS_ADDRESS``, else the one that runs here; None: there is none.

    Raises ConfigurationError for what is no address.
    """
    if address is not None:
        return _checked(address, "address")
    if environ.get(ADDRESS):
        return _checked(environ[ADDRESS], ADDRESS)
    home = rmcs_home(environ)
    said = holder(home)
    found = None if said is None else said.get("address")
    if found is None:
        if (home / "rmcs.db").exists():
            say(f"the service of {home} does not run (rmcs up starts it): this program has a control plane of its own")
        return None
    _log.info("the service that runs here is used: %s", found)
    return _checked(str(found), "server.json")


def where_now(control_plane: str, environ: Mapping[str, str]) -> str | None:
    """Where this very control plane listens, if it runs here: it may have been started again on another port."""
    said = holder(rmcs_home(environ))
    if said is None or said.get("control_plane") != control_plane or not said.get("address"):
        return None
    return _checked(str(said["address"]), "server.json")


def _checked(address: object, key: str) -> str:
    found = _parts(address)
    if found is None or found.scheme not in ("http", "https") or not found.hostname or found.query:
        raise ConfigurationError(
            f"{key} is {address!r}, which is no address of a service.", next_step="write http://127.0.0.1:8000"
        )
    return found.geturl().rstrip("/")


def _parts(address: object) -> SplitResult | None:
    if not isinstance(address, str):
        return None
    text = address.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        _ = parts.port  # raises for one that is no number
    except ValueError:
        return None
    return parts
