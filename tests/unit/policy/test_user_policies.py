"""Policies of users: the three ways to register them, and what they do to a decision."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

import ray_multicluster_scheduler as api
from ray_multicluster_scheduler.common.exception import ConfigurationError, PolicyEvaluationError
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.catalog import PolicyCatalog
from ray_multicluster_scheduler.scheduler.policy.filters import built_in_filters
from ray_multicluster_scheduler.scheduler.policy.interfaces import is_by_kind
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.policy.score_based_policy import ScoreBasedPolicy
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger
from ray_multicluster_scheduler.scheduler.scheduler_core import installed_policies
from ray_multicluster_scheduler.scheduler.scheduler_core.installed_policies import load_policies
from tests.unit.lifecycle.driver import job, task
from tests.unit.policy import user_policies
from tests.unit.policy.views import node, view

HOME = "tests.unit.policy.user_policies"

Register = Callable[..., PolicyEngine]


def engine(**settings: Any) -> PolicyEngine:
    chosen = Settings(**{"resource_threshold": 1, **settings})
    return PolicyEngine(chosen, catalog=load_policies(chosen))


@pytest.fixture(autouse=True)
def _nothing_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_policies, "_registered", {})


def offer(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """As if packages with these entry points were installed."""
    points = EntryPoints([EntryPoint(name, value, installed_policies.ENTRY_POINTS) for name, value in values.items()])
    monkeypatch.setattr(installed_policies, "entry_points", lambda group: points.select(group=group))


@pytest.fixture(params=["by name", "by entry point", "in configuration"])
def registered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Register:
    """An engine that knows these policies, by one of the three ways."""

    def by_name(policies: dict[str, str], **settings: Any) -> PolicyEngine:
        for name, attribute in policies.items():
            api.register_policy(name, getattr(user_policies, attribute))
        return engine(**settings)

    def by_entry_point(policies: dict[str, str], **settings: Any) -> PolicyEngine:
        offer(monkeypatch, **{name: f"{HOME}:{attribute}" for name, attribute in policies.items()})
        return engine(**settings)

    def in_configuration(policies: dict[str, str], **settings: Any) -> PolicyEngine:
        return engine(policies={name: f"{HOME}:{attribute}" for name, attribute in policies.items()}, **settings)

    return {"by name": by_name, "by entry point": by_entry_point, "in configuration": in_configuration}[request.param]


def placed(brain: PolicyEngine, *fleet: ClusterView, **item: Any) -> str | None:
    return brain.schedule(task("t", **item), fleet, 0.0).cluster


# ---- what they do, whichever way they came


def test_a_filter_takes_part_and_its_code_can_be_read(registered: Register) -> None:
    brain = registered({"no_mondays": "NoMondays"})
    closed = view("a", node({"CPU": 64.0}), tags=("monday",))
    decision = brain.schedule(task("t"), [closed, view("b")], 0.0)
    assert decision.cluster == "b"
    assert [one.code for one in decision.candidates[0].rejections] == ["MONDAY"]
    waits = brain.schedule(task("t"), [closed], 0.0)
    assert (waits.cluster, waits.code, waits.unblocked_by) == (None, "MONDAY", None)
    assert waits.sentence == "a: it is Monday there"


def test_a_rank_is_compared_after_the_items_wishes_and_before_scores(registered: Register) -> None:
    brain = registered({"night": "NightShift"})
    big, night = view("big", node({"CPU": 64.0})), view("night", tags=("night",))
    tagged = view("tagged", tags=("arm64",))
    assert placed(brain, big, night) == "night"
    assert placed(brain, big, night, preferred_cluster="big") == "big"
    assert placed(brain, big, night, tagged, tags=("arm64",)) == "tagged"
    decision = brain.schedule(task("t"), [big, night], 0.0)
    assert list(decision.candidates[0].ranks)[:3] == ["preferred", "tags", "night"]
    assert [row.ranks["night"] for row in decision.candidates] == [0, 1]
    assert "night" in decision.sentence


def test_a_rank_outweighs_the_care_for_gpus(registered: Register) -> None:
    brain = registered({"night": "NightShift"})
    gpus = view("gpus", node({"CPU": 8.0, "GPU": 8.0}), tags=("night",))
    assert placed(brain, view("plain"), gpus) == "gpus"


def test_a_score_takes_part_when_weights_name_it(registered: Register) -> None:
    cheap = view("cheap", tags=("price:0",))
    dear = view("dear", node({"CPU": 16.0}), tags=("price:5",))
    policies = {"price": "Cheapness"}
    assert placed(registered(policies), cheap, dear) == "dear"
    assert placed(registered(policies, weights={"price": 1}), cheap, dear) == "cheap"


@pytest.mark.parametrize(
    ("combine", "winner"),
    [("weighted", "roomy"), ("chain", "cheap")],
)
def test_scores_are_added_up_or_compared_one_after_another(registered: Register, combine: str, winner: str) -> None:
    """``cheapness`` 0.6 and 0.5, ``headroom`` 0 and 1 - 1/64: only a strict order prefers the cheaper one."""
    cheap = view("cheap", node({"CPU": 64.0}, {"CPU": 1.0}), tags=("price:4",))
    roomy = view("roomy", node({"CPU": 64.0}), tags=("price:5",))
    brain = registered({"price": "Cheapness"}, weights={"price": 1, "headroom": 1}, combine=combine)
    decision = brain.schedule(task("t"), [cheap, roomy], 0.0)
    assert decision.cluster == winner
    assert [row.scores["price"] for row in decision.candidates] == [0.6, 0.5]


def test_a_chain_compares_the_next_score_only_when_equal(registered: Register) -> None:
    brain = registered({"price": "Cheapness"}, weights={"price": 1, "load": 1}, combine="chain")
    small, large = view("small", tags=("price:3",)), view("large", node({"CPU": 64.0}), tags=("price:3",))
    assert placed(brain, small, large) == "large"


@pytest.mark.parametrize(
    ("attribute", "settings", "says"),
    [
        ("Grumpy", {}, "the filter 'own' raised RuntimeError for cluster c: not in the mood"),
        ("YesOrNo", {}, "the filter 'own' raised TypeError.*check returned False, neither None.*nor a Rejection"),
        ("HalfRank", {}, "TypeError for cluster c: the rank 'own' returned 0.5, not a whole number"),
        (
            "Wordy",
            {"weights": {"own": 1}},
            "the score 'own' raised TypeError for cluster c: 'good' is not a number within",
        ),
        ("Sulky", {"weights": {"own": 1}}, "the score 'own' raised RuntimeError for cluster c: no figures today"),
        ("TooGood", {"weights": {"own": 1}}, "the score 'own' raised ValueError for cluster c: 2.0 is not within 0..1"),
    ],
)
def test_one_that_goes_wrong_is_blamed_by_its_name(
    registered: Register, attribute: str, settings: dict[str, Any], says: str
) -> None:
    brain = registered({"own": attribute}, **settings)
    with pytest.raises(PolicyEvaluationError, match=says):
        brain.schedule(task("t"), [view("c"), view("d")], 0.0)
    with pytest.raises(PolicyEvaluationError, match=says) as caught:
        brain.schedule(task("t"), [view("c")], 0.0)
    assert (caught.value.task_id, caught.value.cluster) == ("t", "c")
    assert caught.value.next_step == "repair the policy, or remove it from the configuration"


def test_one_that_goes_wrong_only_once_cannot_be_named() -> None:
    api.register_policy("own", user_policies.Forgetful)
    with pytest.raises(PolicyEvaluationError, match="a rank or score, .*raised KeyErr"):
        engine(weights={"own": 1}).schedule(task("t"), [view("c")], 0.0)


# ---- registration by name


def test_the_same_policy_may_be_registered_again_and_another_may_not() -> None:
    api.register_policy("mine", user_policies.NoMondays)
    api.register_policy("mine", user_policies.NoMondays)
    with pytest.raises(ConfigurationError, match=r"'mine' is registered already \(.*NoMondays\).*NightShift under"):
        api.register_policy("mine", user_policies.NightShift)
    assert placed(engine(), view("a", tags=("monday",))) is None


def test_uncallable_policy_is_rejected_at_once() -> None:
    with pytest.raises(ConfigurationError, match="'mine' is registered with 'NoMondays', which cannot be called"):
        api.register_policy("mine", "NoMondays")  # type: ignore[arg-type]  # what a user may get wrong


def test_each_scheduler_gets_a_policy_of_its_own() -> None:
    made: list[user_policies.NoMondays] = []

    def factory() -> user_policies.NoMondays:
        made.append(user_policies.NoMondays())
        return made[-1]

    api.register_policy("mine", factory)
    engine()
    engine()
    assert len(made) == 2


def test_a_factory_that_raises_is_named() -> None:
    api.register_policy("mine", user_policies.NeedsArguments)  # type: ignore[arg-type]  # what a user may get wrong
    with pytest.raises(ConfigurationError, match=r"'mine' \(.*NeedsArguments\) cannot be loaded: TypeError.*'price'"):
        engine()


# ---- registration in the configuration


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("no_such_package.policies:Thing", "cannot be loaded: ModuleNotFoundError.*PYTHONPATH"),
        (f"{HOME}:NoSuchClass", f"the module {HOME} has no 'NoSuchClass'"),
        (f"{HOME}:NoMondays.inner", "has no 'NoMondays.inner'"),
        ("builtins:object", r"'own' \(object\) is not one of: a filter, a rank, a score"),
        (f"{HOME}:BothAtOnce", r"'own' \(BothAtOnce\) is not one of"),
        (f"{HOME}:a_class", r"'own' \(type\) is not one of"),
        ("tests.unit.policy.views:_METADATA", r"'own' \(frozenset\) is not one of"),
        (f"{HOME}:NeedsArguments", "cannot be loaded: TypeError"),
    ],
)
def test_a_policy_that_cannot_be_used_is_named_by_its_key(path: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"settings\.policies\.own \({path}\).*{says}"):
        engine(policies={"own": path})


def test_an_object_that_is_a_policy_stands_for_itself() -> None:
    brain = engine(policies={"price": f"{HOME}:CHEAPNESS"}, weights={"price": 1})
    assert placed(brain, view("dear", node({"CPU": 64.0})), view("cheap", tags=("price:1",))) == "cheap"


def test_a_name_is_given_once_over_all_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, mine=f"{HOME}:NoMondays")
    with pytest.raises(ConfigurationError, match=r"settings\.policies\.mine.*two policies named 'mine'"):
        engine(policies={"mine": f"{HOME}:NightShift"})
    api.register_policy("mine", user_policies.NightShift)
    with pytest.raises(ConfigurationError, match=r"'mine' \(.*NightShift\): There are two policies named 'mine'"):
        engine()


# ---- registration by entry point


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("no_such_module:Thing", "cannot be loaded: ModuleNotFoundError"),
        ("builtins:object", "is not one of: a filter, a rank, a score"),
        ("math:pow", "TypeError"),
    ],
)
def test_a_package_that_offers_something_else_is_named(monkeypatch: pytest.MonkeyPatch, value: str, says: str) -> None:
    offer(monkeypatch, extra=value)
    with pytest.raises(ConfigurationError, match=rf"'extra' \({value}\).*{says}"):
        engine()


# ---- the catalog itself


@pytest.mark.parametrize("name", ["load", "headroom", "resident", "preferred", "tags", "room", "spares_gpus"])
def test_the_names_of_built_in_policies_are_taken(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"two policies named '{name}'"):
        PolicyCatalog().register_score(name, ScoreBasedPolicy())


@pytest.mark.parametrize("policy", ["NoMondays", "NightShift", "Cheapness"])
def test_a_name_is_given_once(policy: str) -> None:
    catalog = PolicyCatalog()
    catalog.register("mine", getattr(user_policies, policy))
    for other in ("NoMondays", "NightShift", "Cheapness"):
        with pytest.raises(ConfigurationError, match="two policies named 'mine'"):
            catalog.register("mine", getattr(user_policies, other))


def test_weights_that_name_an_unknown_score() -> None:
    with pytest.raises(ConfigurationError, match="names 'lod', but there is no such score.*headroom, load, pack,"):
        engine(weights={"lod": 1, "load": 1})


# ---- verdicts that do for all items of a kind


def test_which_filters_promise_to_read_the_kind_only() -> None:
    promised = {one.name for one in built_in_filters(Settings(), "3.11", QuotaLedger()) if is_by_kind(one)}
    assert " ".join(sorted(promised)) == (
        "carrier cordon dashboard health in_flight link paused python_version running_jobs serial submission_interval"
    )


def test_the_promise_holds() -> None:
    """Items of one kind that differ in all else get the same verdict from those filters."""
    odd = {
        "requirements": {"CPU": 99.0, "GPU": 3.0},
        "tags": ("x",),
        "require_tags": ("y",),
        "deny_clusters": ("c",),
        "preferred_cluster": "elsewhere",
        "fallback": "wait",
        "priority": 9,
        "owner": "alice",
    }
    ill = view("c", dashboard=None, cordoned=True, in_flight=9, max_in_flight=1, running_jobs=9, max_running_jobs=1)
    late = view("c", next_submission_at=50.0, python_version="2.7.18", carrier="ray_client")
    for one in built_in_filters(Settings(execution_mode="serial"), "3.11", QuotaLedger()):
        for cluster in (ill, late):
            if is_by_kind(one):
                assert one.check(task("t"), cluster) == one.check(task("u", **odd), cluster), one.name
                assert one.check(job("j"), cluster) == one.check(job("k", **odd), cluster), one.name


def test_a_users_filter_may_promise_it_too_or_say_nothing() -> None:
    catalog = PolicyCatalog()
    catalog.register("quick", user_policies.NoMondays)
    catalog.register("slow", user_policies.Grumpy)
    assert [(one.name, is_by_kind(one)) for one in catalog.filters] == [("quick", True), ("slow", False)]
