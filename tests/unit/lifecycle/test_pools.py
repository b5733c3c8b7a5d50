"""Pools: items start within the quota of their pool or wait with its code, and pools change while work runs."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import RecallAttempt, RememberFleet
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from tests.unit.lifecycle.driver import Driver, actor, ready, task
from tests.unit.lifecycle.gangs import gang
from tests.unit.lifecycle.test_restore import reborn


def pool(name: str = "p", cpus: float | None = 2, **values: Any) -> Pool:
    quota = {} if cpus is None or "place_quota" in values else {"CPU": float(cpus)}
    return Pool(**{"name": name, "quota": quota, **values})


def submit(driver: Driver, *ids: str, **values: Any) -> None:
    for one in ids:
        driver.submit(task(one, **{"pool": "p", **values}))


def codes(driver: Driver, *ids: str) -> list[str]:
    return [driver.machine.record(one).code for one in ids]


def used(driver: Driver, name: str = "p") -> float:
    ledger = driver.machine.pools.ledger
    return sum(use.used + use.reserved for use in ledger.uses(ledger.pools[name]))


class TestQuotaOfTheFleet:
    def test_items_above_the_quota_wait_until_one_of_the_pool_ends(self) -> None:
        driver = ready(4, 4, pools=[pool()])
        submit(driver, "1", "2", "3", "4")
        assert set(driver.sent_to()) == {"1", "2"}
        assert codes(driver, "3", "4") == ["POOL_FULL", "POOL_FULL"]
        driver.succeed("1")
        assert list(driver.sent_to(ever=False)) == ["3"]
        assert used(driver) == 2

    def test_freed_quota_starts_an_item_on_a_cluster_where_nothing_ended(self) -> None:
        driver = ready(1, 4, pools=[pool(cpus=1)])
        submit(driver, "1", allow_clusters=("a",))
        submit(driver, "2", allow_clusters=("b",))
        assert driver.sent_to() == {"1": "a"}
        driver.succeed("1")
        assert driver.sent_to(ever=False) == {"2": "b"}

    def test_other_items_pass_those_that_wait_for_their_pool(self) -> None:
        driver = ready(4, pools=[pool(cpus=1)])
        submit(driver, "1", "2", priority=9)
        driver.submit(task("other"))
        assert set(driver.sent_to()) == {"1", "other"}

    def test_a_smaller_item_of_the_pool_passes_a_larger_one(self) -> None:
        driver = ready(4, pools=[pool(cpus=2)])
        submit(driver, "1", "large", cpus=1)
        driver.succeed("large")
        driver.submit(task("large2", 2, pool="p"))
        submit(driver, "small")
        assert codes(driver, "large2") == ["POOL_FULL"]
        assert driver.state("small") is TaskState.DISPATCHING

    def test_explain_and_plan_say_what_is_used(self) -> None:
        driver = ready(4, pools=[pool()])
        submit(driver, "1", "2", "3")
        why = driver.machine.explain_wait("3", driver.now)
        assert why is not None
        assert why.code == "POOL_FULL"
        assert why.sentence == "it needs 1 CPU, and pool p uses 2 CPU of its 2 CPU"
        assert why.unblocked_by is not None
        assert why.candidates[0].rejections == ()
        plan = driver.machine.plan(task("4", pool="p"), driver.now)
        assert (plan.code, plan.cluster) == ("POOL_FULL", None)

    def test_an_item_that_the_pool_can_never_hold_waits_for_a_larger_pool(self) -> None:
        driver = ready(4, pools=[pool(cpus=1)])
        driver.submit(task("1", 2, pool="p"))
        assert codes(driver, "1") == ["POOL_TOO_SMALL"]
        driver.send(events.PoolChanged(pool(cpus=2)))
        assert driver.sent_to(ever=False) == {"1": "a"}

    def test_what_needs_nothing_of_the_quota_starts(self) -> None:
        driver = ready({"CPU": 4.0, "GPU": 1.0}, pools=[pool(cpus=0)])  # type: ignore[arg-type]
        driver.submit(task("gpu", 0, requirements={"GPU": 1.0}, pool="p"))
        submit(driver, "cpu")
        assert set(driver.sent_to()) == {"gpu"}

    def test_an_actor_holds_less_once_it_is_ready(self) -> None:
        driver = ready(4, pools=[pool(cpus=1)])
        driver.submit(actor("a1", pool="p"))
        driver.submit(actor("a2", pool="p"))
        assert set(driver.sent_to()) == {"a1"}
        driver.start("a1")
        assert set(driver.sent_to(ever=False)) == {"a2"}

    def test_a_gang_counts_as_a_whole(self) -> None:
        driver = ready(4, 4, pools=[pool(cpus=3)])
        driver.submit(gang("g", 2, 2, pool="p"))
        assert codes(driver, "g") == ["POOL_TOO_SMALL"]

    def test_a_failed_attempt_gives_its_quota_back(self) -> None:
        driver = ready(4, pools=[pool(cpus=1)])
        submit(driver, "1", "2", retries=1)
        driver.fail("1")
        assert set(driver.sent_to(ever=False)) == {"2"}
        assert used(driver) == 1
        driver.refuse("2")
        assert used(driver) <= 1

    def test_prefetched_attempts_count(self) -> None:
        limited = ready(1, pools=[pool(cpus=2)])
        for number in range(3):
            limited.submit(task(f"seen{number}", function_digest="quick"))
            limited.succeed(f"seen{number}", took=0.001)
        submit(limited, "1", "2", "3", function_digest="quick")
        assert {"1", "2"} <= set(limited.sent_to())
        assert codes(limited, "3") == ["POOL_FULL"]
        limited.send(events.PoolChanged(pool(cpus=1)))
        assert [one.task_id for one in limited.issued(RecallAttempt)] == ["2"]


class TestQuotaOfClusters:
    def quota(self, **cpus: float) -> Pool:
        return pool(place_quota={name: {"CPU": amount} for name, amount in cpus.items()})

    def test_each_cluster_has_its_own(self) -> None:
        driver = ready(4, 4, pools=[self.quota(a=1, b=2)])
        submit(driver, "1", "2", "3", "4")
        assert sorted(driver.sent_to().values()) == ["a", "b", "b"]
        assert codes(driver, "4") == ["POOL_FULL"]
        why = driver.machine.explain_wait("4", driver.now)
        assert why is not None
        assert [row.rejections[0].code for row in why.candidates] == ["POOL_FULL", "POOL_FULL"]
        ends = next(one for one, name in driver.sent_to().items() if name == "a")
        driver.succeed(ends)
        assert driver.sent_to(ever=False) == {"4": "a"}

    def test_a_cluster_without_quota_is_not_used(self) -> None:
        driver = ready(4, 4, pools=[self.quota(b=4)])
        submit(driver, "1")
        assert driver.sent_to() == {"1": "b"}
        submit(driver, "2", allow_clusters=("a",))
        assert driver.end("2").error == "NoFeasibleClusterError"

    def test_a_change_is_seen_at_once(self) -> None:
        driver = ready(4, 4, pools=[self.quota(a=1)])
        submit(driver, "1", "2")
        driver.send(events.PoolChanged(self.quota(a=1, b=1)))
        assert driver.sent_to(ever=False) == {"2": "b"}


class TestBorrowing:
    def cohort(self, **values: Any) -> Driver:
        lender = pool("lender", 2, cohort="c", lend_limit=values.pop("lend_limit", {}))
        return ready(8, pools=[pool("p", 2, cohort="c", **values), lender])

    def test_a_pool_borrows_what_its_cohort_does_not_use(self) -> None:
        driver = self.cohort()
        submit(driver, *"12345")
        assert set(driver.sent_to()) == set("1234")
        assert codes(driver, "5") == ["POOL_FULL"]
        driver.submit(task("theirs", pool="lender"))
        assert codes(driver, "theirs") == ["POOL_FULL"]
        assert "lent to its cohort c" in driver.machine.record("theirs").sentence
        driver.succeed("1")
        assert len(driver.sent_to(ever=False)) == 1

    def test_an_item_of_the_lender_starts_when_a_borrower_ends(self) -> None:
        driver = self.cohort()
        submit(driver, *"1234")
        driver.submit(task("theirs", pool="lender"))
        driver.succeed("1")
        assert set(driver.sent_to(ever=False)) == {"theirs"}

    def test_the_borrow_limit_holds(self) -> None:
        driver = self.cohort(borrow_limit={"CPU": 1.0})
        submit(driver, *"1234")
        assert codes(driver, "4") == ["BORROW_LIMIT"]

    def test_the_lend_limit_holds(self) -> None:
        driver = self.cohort(lend_limit={"CPU": 1.0})
        submit(driver, *"1234")
        assert codes(driver, "4") == ["POOL_FULL"]
        driver.submit(task("theirs", pool="lender"))
        assert driver.state("theirs") is TaskState.DISPATCHING


class TestWhichPool:
    def test_labels_and_owners_choose_one(self) -> None:
        pools = [pool("nlp", labels={"team": "nlp"}), pool("anns", owners=("ann",))]
        driver = ready(4, pools=pools)
        driver.submit(task("1", labels={"team": "nlp", "stage": "pretrain"}))
        driver.submit(task("2", owner="ann"))
        driver.submit(task("3"))
        assert [driver.machine.record(one).wanted.pool for one in "123"] == ["nlp", "anns", None]
        assert driver.machine.record("1").task.pool is None

    def test_an_unknown_pool_is_refused(self) -> None:
        driver = ready(4, pools=[pool("train")])
        submit(driver, "1", pool="trian")
        end = driver.end("1")
        assert (end.error, end.next_step) == ("ConfigurationError", "use one of the pools: train")
        assert "'trian'; did you mean 'train'" in end.message or "did you mean" in end.message
        with pytest.raises(ConfigurationError, match="no pool"):
            driver.machine.plan(task("2", pool="trian"), driver.now)

    def test_an_owner_who_may_not_use_it_is_refused(self) -> None:
        driver = ready(4, pools=[pool(owners=("ann",))])
        submit(driver, "1", owner="bob")
        assert driver.end("1").state is TaskState.FAILED
        assert codes(driver, "1") == ["POOL_FORBIDDEN"]

    def test_who_waits_when_the_pool_is_closed_to_them_says_so(self) -> None:
        driver = ready(4, pools=[pool(cpus=0)])
        submit(driver, "1", owner="bob")
        driver.send(events.PoolChanged(pool(cpus=4, owners=("ann",))))
        assert codes(driver, "1") == ["POOL_FORBIDDEN"]

    def test_the_pool_gives_items_without_a_priority_its_own(self) -> None:
        driver = ready(4, pools=[pool(priority=2.5)])
        submit(driver, "1")
        submit(driver, "2", priority=1)
        assert [driver.machine.record(one).wanted.priority for one in "12"] == [2.5, 1]


class TestChanges:
    def test_below_what_is_used_nothing_starts_until_use_has_fallen(self) -> None:
        driver = ready(8, pools=[pool(cpus=3)])
        submit(driver, *"12345")
        driver.send(events.PoolChanged(pool(cpus=1)))
        assert RememberFleet() in driver.last
        driver.succeed("1")
        driver.succeed("2")
        assert not driver.sent_to(ever=False)
        driver.succeed("3")
        assert len(driver.sent_to(ever=False)) == 1

    def test_a_repeated_change_changes_nothing(self) -> None:
        driver = ready(8, pools=[pool()])
        driver.send(events.PoolChanged(pool()))
        assert driver.last == []

    def test_an_unused_pool_is_deleted(self) -> None:
        driver = ready(8, pools=[pool()])
        driver.send(events.PoolDeleted("p"))
        assert not driver.machine.pools.ledger.pools
        driver.send(events.PoolDeleted("p"))
        assert driver.last == []

    def test_a_used_pool_drains(self) -> None:
        driver = ready(8, pools=[pool(cpus=1)])
        submit(driver, "1", "2")
        driver.send(events.PoolDeleted("p"))
        submit(driver, "3")
        assert codes(driver, "3") == ["POOL_DRAINING"]
        driver.succeed("1")
        assert driver.state("2") is TaskState.DISPATCHING
        driver.succeed("2")
        assert RememberFleet() in driver.last
        assert not driver.machine.pools.ledger.pools

    def test_a_restart_keeps_pools_use_and_draining(self) -> None:
        driver = ready(8, pools=[pool(cpus=1)])
        driver.send(events.PoolChanged(pool(cpus=2)))
        driver.send(events.PoolChanged(pool("new", labels={"team": "nlp"}, priority=3)))
        submit(driver, "1", "2", "3")
        driver.start("1")
        driver.submit(task("labelled", labels={"team": "nlp"}))
        driver.send(events.PoolDeleted("p"))
        after = reborn(driver, pools=[pool(cpus=1)])
        assert after.machine.pools.ledger.pools == driver.machine.pools.ledger.pools
        assert used(after) == 2
        assert used(after, "new") == 1
        assert after.machine.record("labelled").wanted.priority == 3
        after.link_up("a", 8)
        assert not after.sent_to().get("3")
        for one in ("1", "2"):
            after.succeed(one)
        assert after.state("3") is TaskState.DISPATCHING
        after.succeed("3")
        assert "p" not in after.machine.pools.ledger.pools

    def test_a_pool_that_left_the_configuration_keeps_its_items_waiting(self) -> None:
        driver = ready(1, pools=[pool(cpus=1)])
        submit(driver, "1", "2")
        after = reborn(driver)
        after.link_up("a", 1)
        after.succeed("1")
        assert codes(after, "2") == ["POOL_UNKNOWN"]
        after.send(events.PoolChanged(pool(cpus=1)))
        assert after.sent_to(ever=False) == {"2": "a"}

    def test_a_change_that_is_the_configured_pool_is_no_change_any_more(self) -> None:
        driver = ready(8, pools=[pool(cpus=1)])
        driver.send(events.PoolChanged(pool(cpus=2)))
        assert [row.name for row in driver.machine.pool_rows()] == ["p"]
        driver.send(events.PoolChanged(pool(cpus=1)))
        assert driver.machine.pool_rows() == ()
