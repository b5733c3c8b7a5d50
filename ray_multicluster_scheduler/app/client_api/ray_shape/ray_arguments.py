"""Arguments that Ray's verbs have and ours need not: taken as far as they say what happens anyway.

Standard library only: the verbs are loaded inside a cluster, too.
"""

from __future__ import annotations

from ray_multicluster_scheduler.common.exception import ConfigurationError


def check_recursive(recursive: object) -> None:
    """Of ``cancel``: what an item has submitted inside its cluster ends with it. Raises ConfigurationError."""
    if recursive is not True:
        raise ConfigurationError(
            f"recursive={recursive!r} is not there: what an item has submitted inside its cluster ends with it.",
            next_step="leave it out; what is to go on must be submitted by somebody else",
        )


def check_namespace(namespace: object) -> None:
    """Of ``get_actor``. Raises ConfigurationError."""
    if namespace is not None:
        raise ConfigurationError(
            f"namespace is {namespace!r}, but names of actors are not divided into namespaces here.",
            next_step="leave it out: names are those of this program's actors and of detached ones",
        )
