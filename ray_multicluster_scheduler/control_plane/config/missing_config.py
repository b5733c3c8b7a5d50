"""The error for a missing configuration. A light module: commands check for this error at every start."""

from __future__ import annotations

from ray_multicluster_scheduler.common.exception import ConfigurationError


class NothingConfiguredError(ConfigurationError):
    """No clusters are configured anywhere."""
