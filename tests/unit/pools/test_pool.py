"""Pools: which are valid, who may use them, and which one an item gets."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.scheduler.pools.pool import Pool, check_cohorts, find_pool


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "cannot be the name"),
        ({"name": "a/b"}, "cannot be the name"),
        ({"quota": {"CPU": 1}, "place_quota": {"east": {"CPU": 1}}}, "one for each cluster"),
        ({"reclaim": "always"}, "use one of never, lower_priority, any"),
        ({"reclaim": "any"}, "no cohort"),
        ({"protected": True, "cohort": "c", "borrow_limit": {"CPU": 1}}, "does not borrow"),
    ],
)
def test_invalid_pools_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Pool(**{"name": "train", **fields})


def test_a_protected_pool_may_state_that_it_borrows_nothing() -> None:
    assert Pool(name="train", protected=True, cohort="c", borrow_limit={"CPU": 0}).protected


def test_a_quota_for_each_place_limits_where_a_pool_may_run() -> None:
    pool = Pool(name="train", place_quota={"east": {"CPU": 4}})
    assert pool.may_use("east")
    assert not pool.may_use("west")
    assert pool.quota_at("east") == {"CPU": 4}
    assert pool.quota_at("west") == {}


def test_one_quota_for_all_places() -> None:
    pool = Pool(name="train", quota={"CPU": 4})
    assert pool.may_use("west")
    assert pool.quota_at("west") == {"CPU": 4}


def test_owners_may_use_a_pool() -> None:
    assert Pool(name="train").may_be_used_by("anybody")
    assert Pool(name="train", owners=("ann",)).may_be_used_by("ann")
    assert not Pool(name="train", owners=("ann",)).may_be_used_by("bob")


NLP = Pool(name="nlp", labels={"team": "nlp"})
NLP_PRETRAIN = Pool(name="pretrain", labels={"team": "nlp", "stage": "pretrain"})
OF_ANN = Pool(name="of-ann", owners=("ann",))


@pytest.mark.parametrize(
    ("labels", "owner", "name"),
    [
        ({"team": "nlp"}, "bob", "nlp"),
        ({"team": "nlp", "stage": "pretrain", "more": "yes"}, "bob", "pretrain"),
        ({"team": "vision"}, "ann", "of-ann"),
        ({"team": "vision"}, "bob", None),
        ({}, "bob", None),
    ],
)
def test_the_pool_of_an_item_that_names_none(labels: dict[str, str], owner: str, name: str | None) -> None:
    found = find_pool([NLP, NLP_PRETRAIN, OF_ANN, Pool(name="everybody")], labels, owner)
    assert (found.name if found else None) == name


def test_there_is_no_pool_if_two_match_equally_well() -> None:
    two = [NLP, Pool(name="other", labels={"stage": "pretrain"})]
    assert find_pool(two, {"team": "nlp", "stage": "pretrain"}, "ann") is None
    assert find_pool([OF_ANN, Pool(name="also", owners=("ann",))], {}, "ann") is None


def test_a_pool_that_the_owner_may_not_use_does_not_match() -> None:
    closed = Pool(name="closed", labels={"team": "nlp"}, owners=("ann",))
    assert find_pool([closed], {"team": "nlp"}, "bob") is None
    assert find_pool([closed], {"team": "nlp"}, "ann") is closed


def test_pools_of_a_cohort_have_the_same_kind_of_quota() -> None:
    whole, by_place = {"quota": {"CPU": 1.0}}, {"place_quota": {"east": {"CPU": 1.0}}}
    check_cohorts([Pool(name="a", cohort="c", **whole), Pool(name="b", cohort="c", **whole)])
    check_cohorts(
        [Pool(name="a", cohort="c", **whole), Pool(name="b", **by_place), Pool(name="d", cohort="e", **by_place)]
    )
    with pytest.raises(ConfigurationError, match="Pools a and b of the cohort c cannot lend to each other"):
        check_cohorts([Pool(name="a", cohort="c", **whole), Pool(name="b", cohort="c", **by_place)])
