"""The error where no clusters are configured. Light: commands look at every start whether an error is this one."""

from __future__ import annotations

from ray_multicluster_scheduler.common.exception import ConfigurationError


class NothingConfiguredError(ConfigurationError):
    """No place where clusters could be named names any."""
