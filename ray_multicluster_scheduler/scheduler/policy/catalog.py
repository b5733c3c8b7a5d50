"""PolicyCatalog: the filters and scores there are, by name; users add their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.scheduler.policy.interfaces import Filter, Score
from ray_multicluster_scheduler.scheduler.policy.score_based_policy import ScoreBasedPolicy
from ray_multicluster_scheduler.scheduler.policy.weighted_preference_policy import WeightedPreferencePolicy


class PolicyCatalog:
    """Scores take part when ``weights`` names them; additional filters always do."""

    def __init__(self) -> None:
        self._scores: dict[str, Score] = {}
        self._filters: dict[str, Filter] = {}
        for score in (WeightedPreferencePolicy(), ScoreBasedPolicy()):
            self.register_score(score.name, score)

    @property
    def filters(self) -> tuple[Filter, ...]:
        """Those that were added, beside the built-in ones."""
        return tuple(self._filters.values())

    def register_score(self, name: str, score: Score) -> None:
        """Make it known under this name. Raises ConfigurationError when the name is taken."""
        self._check_free(name)
        self._scores[name] = score

    def register_filter(self, name: str, policy: Filter) -> None:
        """As :meth:`register_score`, for a filter."""
        self._check_free(name)
        self._filters[name] = policy

    def register(self, name: str, factory: Callable[[], object]) -> None:
        """Add what a factory makes, by what it can do: ``check`` is a filter, ``score`` a score."""
        policy = factory()
        if isinstance(policy, Filter):
            self.register_filter(name, policy)
        elif isinstance(policy, Score):
            self.register_score(name, policy)
        else:
            raise ConfigurationError(
                f"The policy {name!r} ({type(policy).__name__}) is neither a filter nor a score.",
                next_step="give it a `name` and a method `check` or `score`, as in policy/interfaces.py",
            )

    def chosen_scores(self, weights: Mapping[str, float]) -> dict[str, Score]:
        """The scores with a weight above 0, in the given order. Raises ConfigurationError for an unknown name."""
        unknown = [name for name in weights if name not in self._scores]
        if unknown:
            raise ConfigurationError(
                f"settings.weights names {', '.join(map(repr, unknown))}, but there is no such score.",
                next_step=f"use one of: {', '.join(sorted(self._scores))}",
            )
        return {name: self._scores[name] for name, weight in weights.items() if weight > 0}

    def _check_free(self, name: str) -> None:
        if name in self._scores or name in self._filters:
            raise ConfigurationError(
                f"There are two policies named {name!r}.", next_step="rename or uninstall one of them"
            )
