"""Users' own policies: registered by the program, offered by installed packages, or named in the configuration.

Loading them imports users' modules; ``scheduler/policy`` itself does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.scheduler.policy.catalog import PolicyCatalog

if TYPE_CHECKING:  # `register_policy` is imported inside clusters as well, where pydantic may be missing
    from ray_multicluster_scheduler.control_plane.config.settings import Settings

ENTRY_POINTS = "ray_multicluster_scheduler.policies"

_registered: dict[str, Callable[[], object]] = {}


def register_policy(name: str, factory: Callable[[], object]) -> None:
    """Register your own filter, rank or score for all schedulers that are started from now on.

    ``factory`` (a class will do) is called once per scheduler, and makes an object with a ``name`` and one of the
    methods ``check``, ``rank`` and ``score``. Filters and ranks always take part, a score does when
    ``settings.weights`` names it. Raises ConfigurationError when another policy has this name.
    """
    if not callable(factory):
        raise ConfigurationError(
            f"The policy {name!r} is registered with {factory!r}, which cannot be called.",
            next_step="give its class, or a function without arguments that makes it",
        )
    before = _registered.get(name)
    if before is not None and _origin(before) != _origin(factory):
        raise ConfigurationError(
            f"The policy {name!r} is registered already ({_origin(before)}).",
            next_step=f"register {_origin(factory)} under another name",
        )
    _registered[name] = factory  # again: a notebook cell was run again


def load_policies(settings: Settings) -> PolicyCatalog:
    """All users' policies for a scheduler with these settings. Raises ConfigurationError with the entry point or the
    key of a policy that cannot be loaded."""
    catalog = PolicyCatalog()
    load_entry_points(catalog)
    for name, factory in list(_registered.items()):
        _add(
            catalog, name, factory, f"The policy {name!r} ({_origin(factory)})", "repair what register_policy was given"
        )
    for name, path in settings.policies.items():
        where = f"settings.policies.{name} ({path})"
        _add(catalog, name, _factory_at(path, where), where, f"correct settings.policies.{name}, or what it names")
    return catalog


def load_entry_points(catalog: PolicyCatalog) -> None:
    """Add the policies of installed packages. Raises ConfigurationError with the entry point that cannot be loaded."""
    for point in entry_points(group=ENTRY_POINTS):
        what = f"The policy {point.name!r} ({point.value})"
        step = "repair or uninstall the package that offers it"
        try:
            factory = point.load()
        except Exception as error:
            raise _cannot_be_loaded(what, error, step) from error
        _add(catalog, point.name, factory, what, step)


def _factory_at(path: str, where: str) -> Callable[[], object]:
    """The object at ``package.module:attribute`` as a factory; a policy object is returned as it is."""
    module_name, _, attribute = path.partition(":")
    try:
        found: object = import_module(module_name)
    except Exception as error:
        step = "install the package where the scheduler runs, put its folder on PYTHONPATH, or correct the key"
        raise _cannot_be_loaded(where, error, step) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(
                f"{where}: the module {module_name} has no {attribute!r}.",
                next_step="name the class of the policy, as package.module:Class",
            )
        found = getattr(found, part)
    return found if callable(found) else lambda: found


def _add(catalog: PolicyCatalog, name: str, factory: Callable[[], object], what: str, step: str) -> None:
    try:
        catalog.register(name, factory)
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error.message}", next_step=error.next_step) from error
    except Exception as error:
        raise _cannot_be_loaded(what, error, step) from error


def _cannot_be_loaded(what: str, error: Exception, step: str) -> ConfigurationError:
    return ConfigurationError(f"{what} cannot be loaded: {type(error).__name__}: {error}.", next_step=step)


def _origin(factory: Callable[[], object]) -> str:
    kind = type(factory)
    module = getattr(factory, "__module__", kind.__module__)
    return f"{module}.{getattr(factory, '__qualname__', kind.__qualname__)}"
