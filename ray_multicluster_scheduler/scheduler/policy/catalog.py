"""PolicyCatalog: registered policies by name, in addition to the built-in filters and ranks; users add their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.scheduler.policy.checked_policies import (
    CheckedFilter,
    CheckedRank,
    CheckedRawScore,
    CheckedScore,
)
from ray_multicluster_scheduler.scheduler.policy.gpu_avoidance_policy import GpuAvoidancePolicy
from ray_multicluster_scheduler.scheduler.policy.interfaces import Filter, Rank, RawScore, Score
from ray_multicluster_scheduler.scheduler.policy.pack_policy import PackPolicy
from ray_multicluster_scheduler.scheduler.policy.preferred_cluster_policy import PreferredClusterPolicy
from ray_multicluster_scheduler.scheduler.policy.resident_policy import ResidentPolicy
from ray_multicluster_scheduler.scheduler.policy.room_policy import RoomPolicy
from ray_multicluster_scheduler.scheduler.policy.score_based_policy import ScoreBasedPolicy
from ray_multicluster_scheduler.scheduler.policy.tag_affinity_policy import TagAffinityPolicy
from ray_multicluster_scheduler.scheduler.policy.weighted_preference_policy import WeightedPreferencePolicy

_BUILT_IN_RANKS = frozenset(
    one.name for one in (PreferredClusterPolicy, TagAffinityPolicy, GpuAvoidancePolicy, RoomPolicy)
)


class PolicyCatalog:
    """Scores apply when ``weights`` names them; added filters and ranks always apply.

    Added ranks are compared in the order of registration, after the preferences of the item (cluster, tags) and
    before all else.
    """

    def __init__(self) -> None:
        self._scores: dict[str, Score] = {}
        self._filters: dict[str, Filter] = {}
        self._ranks: dict[str, Rank] = {}
        for score in (WeightedPreferencePolicy(), ScoreBasedPolicy(), ResidentPolicy(), PackPolicy()):
            self._scores[score.name] = score

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The added filters."""
        return tuple(self._filters.values())

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The added ranks, in the order in which they are compared."""
        return tuple(self._ranks.values())

    def register_score(self, name: str, score: Score) -> None:
        """Register a score. Raises ConfigurationError when the name is taken."""
        self._check_free(name)
        self._scores[name] = CheckedRawScore(name, score) if isinstance(score, RawScore) else CheckedScore(name, score)

    def register_filter(self, name: str, policy: Filter) -> None:
        """As :meth:`register_score`, for a filter."""
        self._check_free(name)
        self._filters[name] = CheckedFilter(name, policy)

    def register_rank(self, name: str, policy: Rank) -> None:
        """As :meth:`register_score`, for a rank."""
        self._check_free(name)
        self._ranks[name] = CheckedRank(name, policy)

    def register(self, name: str, factory: Callable[[], object]) -> None:
        """Register what the factory returns: filter, rank or score, by its method (``check``, ``rank``, ``score``)."""
        policy = factory()
        roles = [] if isinstance(policy, type) else [one for one in (Filter, Rank, Score) if isinstance(policy, one)]
        if len(roles) != 1:
            raise ConfigurationError(
                f"The policy {name!r} ({type(policy).__name__}) is not one of: a filter, a rank, a score.",
                next_step="give it a `name` and one of the methods `check`, `rank`, `score` (see policy/interfaces.py)",
            )
        if isinstance(policy, Filter):
            self.register_filter(name, policy)
        elif isinstance(policy, Rank):
            self.register_rank(name, policy)
        else:
            self.register_score(name, cast("Score", policy))

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
        if name in _BUILT_IN_RANKS or name in self._scores or name in self._filters or name in self._ranks:
            raise ConfigurationError(
                f"There are two policies named {name!r}.", next_step="rename or uninstall one of them"
            )
