"""Models of the routes of pools. The fields of a pool are those of ``pools:`` in clusters.yaml."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ray_multicluster_scheduler.control_plane.admin_api.schemas.api_model import ApiModel, optional, required

_Amounts: TypeAlias = dict[str, float | str]


class PoolValues(ApiModel):
    """A pool, with the keys of clusters.yaml. Its name is that of the path."""

    name: str = optional()
    labels: dict[str, str] = optional("Items with all of these labels get it, if they name no pool.")
    quota: _Amounts = optional("By resource, for the whole fleet.", {"CPU": 8, "memory": "64GiB"})
    cluster_quota: dict[str, _Amounts] = optional("By cluster and resource, instead of `quota`.")
    cohort: str | None = optional("Pools of one cohort lend each other what they do not use.")
    borrow_limit: _Amounts = optional("By resource; no limit for others.")
    lend_limit: _Amounts = optional("By resource; no limit for others.")
    protected: bool = optional("Its items are never preempted; it does not borrow.")
    reclaim: Literal["never", "lower_priority", "any"] = optional(
        "Whose items may be stopped to get back what it lent."
    )
    priority: float = optional("The priority of its items that have priority 0.")
    preemptible: bool = optional("Whether its items may be preempted, unless they say so themselves.")
    owners: list[str] = optional("Who may use it; empty: everybody.")


class NamedPool(PoolValues):
    """A pool, with the keys of clusters.yaml."""

    name: str = required(example="train")


class QuotaUse(ApiModel):
    """One resource of a quota."""

    cluster: str | None = required("null: the quota is for the whole fleet.", None)
    resource: str = required(example="CPU")
    quota: float = required(example=8.0)
    used: float = required("By items that run, including what is borrowed.", 6.0)
    reserved: float = required("By items that are about to run.", 0.0)
    borrowed: float = required("What it uses beyond its quota.", 0.0)
    lent: float = required("Its part of what others of its cohort borrow.", 0.0)
    available: float = required("How much more its items may use now.", 2.0)
    sentence: str = required("The same as a sentence.", "6 CPU of 8 CPU used, …")


class Pool(NamedPool):
    source: Literal["configured", "changed", "created"] = required(
        "configured: as in clusters.yaml; changed: differs from it; created: at run time, by REST or `rmcs pool`."
    )
    draining: bool = required("It is being deleted: it accepts nothing new.", False)
    waiting: int = required("Unfinished items that are on no cluster.")
    running: int = required("Items on clusters.")
    use: list[QuotaUse] = required("Each resource of its quota.")


class Pools(ApiModel):
    pools: list[Pool] = required()


class ApplyPools(ApiModel):
    pools: list[NamedPool] = required(
        "Keys that are not given have their defaults.", [{"name": "train", "quota": {"CPU": 8}}]
    )
    prune: bool = optional("Delete all other pools; those in use drain.", False)


class AppliedPools(ApiModel):
    created: list[str] = required(example=["train"])
    changed: list[str] = required(example=[])
    unchanged: list[str] = required(example=[])
    deleted: list[str] = required(example=[])
    draining: list[str] = required("Deleted as soon as their unfinished items have ended.", [])


class DeletedPool(ApiModel):
    name: str = required(example="train")
    deleted: bool = required("false: it drains, and is deleted when its unfinished items have ended.")
    unfinished: int = required("Number of its unfinished items.", 0)
