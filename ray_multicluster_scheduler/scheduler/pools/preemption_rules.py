"""PreemptionRules: the settings that decide who may take whose place. ``rule_check.py`` applies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ray_multicluster_scheduler.common.exception import ConfigurationError

SAME_POOL_PRIORITY = "same_pool_priority"
OTHER_POOL_PRIORITY = "other_pool_priority"
LABEL_RULE = "label_rule"
RECLAIM = "reclaim"
REASONS = frozenset({SAME_POOL_PRIORITY, OTHER_POOL_PRIORITY, LABEL_RULE, RECLAIM})

ALREADY_LEAVING = "ALREADY_LEAVING"
PROTECTED = "PROTECTED"
NOT_PREEMPTIBLE = "NOT_PREEMPTIBLE"
PRIORITY_TOO_CLOSE = "PRIORITY_TOO_CLOSE"
CROSS_POOL_DISABLED = "CROSS_POOL_DISABLED"
NOTHING_TO_RECLAIM = "NOTHING_TO_RECLAIM"
NEWCOMER_BORROWS = "NEWCOMER_BORROWS"
MIN_RUNTIME = "MIN_RUNTIME"
COOLING_DOWN = "COOLING_DOWN"

PRESETS = {"high": (0.1, 0.5), "medium": (0.5, 1.0), "low": (1.0, 3.0)}
"""How readily items give way: the least difference of priority for label rules, and inside a pool."""
_ENVIRONMENT = "env:"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRules:
    """``same_pool``, ``other_pool`` and ``label`` are the least differences of priority. ``label_rules``: by the key
    and the value of the newcomer's label, the values of that key whose items it may displace.

    Without ``enable_cross_pool`` only a reclaim of lent quota displaces an item of another pool. ``min_runtime_s`` is
    for items without their own. For ``cool_down_s`` after a preemption the same item is a victim only of a reclaim.
    ``grace_s`` is the time that a victim has to save its state.
    """

    same_pool: float = 1.0
    other_pool: float = 5.0
    label: float = 0.5
    enable_cross_pool: bool = True
    label_rules: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    enable_labels: bool = True
    min_runtime_s: float = 60
    cool_down_s: float = 300
    grace_s: float = 30

    def __post_init__(self) -> None:
        for name in ("same_pool", "other_pool"):
            if not getattr(self, name) > 0:
                raise self._error(name, "above 0: items of equal priority never displace each other")
        for name in ("label", "min_runtime_s", "cool_down_s", "grace_s"):
            if not getattr(self, name) >= 0:
                raise self._error(name, "0 or more")

    def _error(self, name: str, allowed: str) -> ConfigurationError:
        return ConfigurationError(
            f"The preemption setting {name} is {getattr(self, name)}.", next_step=f"give a number {allowed}"
        )


def thresholds(text: str, environ: Mapping[str, str]) -> tuple[float, float]:
    """The settings ``label`` and ``same_pool`` of a preset, or of the preset that a variable of ``environ`` names, as
    ``env:NAME``. Raises ConfigurationError."""
    word, source = text, ""
    if text.startswith(_ENVIRONMENT):
        name = text.removeprefix(_ENVIRONMENT)
        if name not in environ:
            raise ConfigurationError(
                f"The preemption preset is {text!r}, and the environment variable {name!r} is not set.",
                next_step=f"set it to {_allowed()}",
            )
        word, source = environ[name], f", from the environment variable {name}"
    if word not in PRESETS:
        raise ConfigurationError(
            f"There is no preemption preset {word!r}{source}.",
            next_step=f"use {_allowed()}" + ("" if source else f", or {_ENVIRONMENT}NAME for an environment variable"),
        )
    return PRESETS[word]


def _allowed() -> str:
    return " or ".join(PRESETS)
