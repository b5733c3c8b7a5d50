"""Finds the address of a service: a configured one, or that of the service on this machine. Light: commands load it."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.notices import notify
from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
from ray_multicluster_scheduler.control_plane.store.state_folder import DATABASE, holder

ADDRESS = "RMCS_ADDRESS"
_log = get_logger(__name__)


def named_service(address: str | None, environ: Mapping[str, str]) -> str | None:
    """Return ``address``, else ``RMCS_ADDRESS``. Raises ConfigurationError for an invalid address."""
    if address is not None:
        return checked_address(address, "address")
    return checked_address(environ[ADDRESS], ADDRESS) if environ.get(ADDRESS) else None


def service_here(environ: Mapping[str, str]) -> str | None:
    """Return the address of the service on this machine with the same state folder. Raises ConfigurationError."""
    found = (holder(rmcs_home(environ)) or {}).get("address")
    return None if found is None else checked_address(str(found), "server.json")


def checked_address(address: object, key: str) -> str:
    """Validate and normalize an address. Raises ConfigurationError."""
    found = _parts(address)
    if found is None or found.scheme not in ("http", "https") or not found.hostname or found.query:
        raise ConfigurationError(
            f"{key} is {address!r}, which is not the address of a service.", next_step="write http://127.0.0.1:8000"
        )
    if found.username is not None or found.password is not None:
        raise ConfigurationError(  # do not repeat the password
            f"{key} contains a user or a password, which services do not use.",
            next_step=f"write http://{found.hostname}:{found.port or 8000}, and give a token with RMCS_TOKEN",
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


def find_service(address: str | None, environ: Mapping[str, str]) -> str | None:
    """Return ``address``, else ``RMCS_ADDRESS``, else the service on this machine, else None. Raises ConfigurationError
    for an invalid address."""
    named = named_service(address, environ)
    if named is not None:
        return named
    found = service_here(environ)
    if found is None:
        home = rmcs_home(environ)
        if (home / DATABASE).exists():
            notify(f"the service of {home} does not run (rmcs up starts it): this program uses its own control plane")
        return None
    _log.info("using the service on this machine: %s", found)
    return found


def current_address(control_plane: str, environ: Mapping[str, str]) -> str | None:
    """Return the current address of this control plane if it runs on this machine, possibly on a new port."""
    running = holder(rmcs_home(environ)) or {}
    return service_here(environ) if running.get("control_plane") == control_plane and running.get("address") else None
