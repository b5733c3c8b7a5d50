"""Checks of arguments that the verbs outside and inside a cluster share, most of them arguments that Ray's verbs have.

Standard library only: the verbs are also loaded inside clusters.
"""

from __future__ import annotations

import inspect

from ray_multicluster_scheduler.common.exception import ConfigurationError


def check_function(
    function: object,
    name: str | None = None,
    *,
    verb: str = "submit_task",
    usage: str = "pass the function itself: submit_task(f, args=(1, 2)), not submit_task(f(1, 2))",
    generators: bool = False,
) -> str:
    """Check that the argument of ``verb`` is a plain function; returns its name. Raises ConfigurationError."""
    if not callable(function):
        raise ConfigurationError(
            f"{verb} was given {function!r} ({type(function).__name__}), which is not a function.", next_step=usage
        )
    shown = name or getattr(function, "__qualname__", None) or type(function).__qualname__
    if inspect.isgeneratorfunction(function) and not generators:
        raise ConfigurationError(
            f"{shown} is a generator, which cannot be used here.",
            next_step="return a list, or use remote(f).remote(…), which returns its values while it runs",
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{shown} is an async function; a Ray task is a plain one.",
            next_step="wrap it: def run(): return asyncio.run(f())",
        )
    return str(shown)


def check_recursive(recursive: object) -> None:
    """Check ``recursive`` of ``cancel``: only True is supported. Raises ConfigurationError."""
    if recursive is not True:
        raise ConfigurationError(
            f"recursive={recursive!r} is not supported: what an item has submitted inside its cluster ends with it.",
            next_step="leave it out; submit work that is to continue from another item",
        )


def check_what_to_cancel(item: object) -> None:
    """Check the argument of ``cancel``: an id, or any handle. Raises ConfigurationError."""
    is_handle = hasattr(type(item), "_rmcs_actor_handle") or (hasattr(item, "cancel") and hasattr(item, "id"))
    if not isinstance(item, str) and not is_handle:
        many = ", one call for each" if isinstance(item, (list, tuple, set)) else ""
        raise ConfigurationError(
            f"cancel was given {item!r}, which is neither a handle nor an id.",
            next_step=f"pass a handle or an id{many}",
        )


def check_num_returns(num_returns: object, given: int, different: int) -> int:
    """Check ``num_returns`` of ``wait`` for ``given`` handles, ``different`` ones. Raises ConfigurationError."""
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
    """Check ``namespace`` of ``get_actor``: only None is supported. Raises ConfigurationError."""
    if namespace is not None:
        raise ConfigurationError(
            f"namespace is {namespace!r}, but names of actors are not divided into namespaces here.",
            next_step="leave it out: names are those of this program's actors and of detached ones",
        )
