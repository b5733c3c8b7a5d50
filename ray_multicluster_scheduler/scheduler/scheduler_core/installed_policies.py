"""Policies that other installed packages offer, found by their entry points."""

from __future__ import annotations

from importlib.metadata import entry_points

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.scheduler.policy.catalog import PolicyCatalog

ENTRY_POINTS = "ray_multicluster_scheduler.policies"


def load_entry_points(catalog: PolicyCatalog) -> None:
    """Add the policies that installed packages offer. Reads the disk: call it once, where things are wired up.

    Raises ConfigurationError that names the entry point when one cannot be loaded.
    """
    for point in entry_points(group=ENTRY_POINTS):
        try:
            catalog.register(point.name, point.load())
        except ConfigurationError:
            raise
        except Exception as error:
            raise ConfigurationError(
                f"The policy {point.name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}.",
                next_step="repair or uninstall the package that offers it",
            ) from error
