"""Arguments that Ray's verbs have and ours need not, taken as far as they say what happens anyway; and checks that the
verbs outside and inside of a cluster have in common.

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


def check_what_to_cancel(item: object) -> None:
    """Of ``cancel``: an id, or a handle of whatever kind. Raises ConfigurationError."""
    is_handle = hasattr(type(item), "_rmcs_actor_handle") or (hasattr(item, "cancel") and hasattr(item, "id"))
    if not isinstance(item, str) and not is_handle:
        many = ", one call for each" if isinstance(item, (list, tuple, set)) else ""
        raise ConfigurationError(
            f"cancel was given {item!r}, which is neither a handle nor an id.",
            next_step=f"pass a handle or an id{many}",
        )


def check_num_returns(num_returns: object, given: int, different: int) -> int:
    """Of ``wait``, for so many handles, of which so many are different. Raises ConfigurationError."""
    if isinstance(num_returns, bool) or not isinstance(num_returns, int):
        raise ConfigurationError(f"num_returns is {num_returns!r}.", next_step="give a whole number")
    if 1 <= num_returns <= max(1, different):
        return num_returns
    if 1 <= num_returns <= given:
        raise ConfigurationError(
            f"num_returns is {num_returns}, but the same handle was given twice and counts once: that is {different}.",
            next_step="give each handle once",
        )
    raise ConfigurationError(
        f"num_returns is {num_returns}, with {given} handle{'' if given == 1 else 's'}.",
        next_step="give 1 up to their number",
    )


def check_namespace(namespace: object) -> None:
    """Of ``get_actor``. Raises ConfigurationError."""
    if namespace is not None:
        raise ConfigurationError(
            f"namespace is {namespace!r}, but names of actors are not divided into namespaces here.",
            next_step="leave it out: names are those of this program's actors and of detached ones",
        )
