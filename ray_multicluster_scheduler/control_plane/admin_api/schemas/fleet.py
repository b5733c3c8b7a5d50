"""What the routes of the fleet take and answer."""

from __future__ import annotations

from ray_multicluster_scheduler.control_plane.admin_api.schemas.items import ID
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import Described, one
from ray_multicluster_scheduler.control_plane.admin_api.schemas.shapes import (
    ANYTHING,
    flag,
    many,
    named,
    or_null,
    text,
    thing,
)

MAC = {
    "name": "mac",
    "state": "UP",
    "sentence": "",
    "cordoned": False,
    "paused": None,
    "items": 1,
    "carrier": "agent",
    "tasks_by": "agent: it has a dashboard, by which an agent is started",
    "other_control_planes": [],
    "tags": ["macos", "arm64"],
    "prefer": True,
    "weight": 1.2,
    "dashboard": "http://192.168.5.2:8265",
    "head_address": "192.168.5.2:32546",
    "current": True,
    "snapshot_at": 1794700800.0,
    "nodes": 1,
    "total": {"CPU": 8.0},
    "free": {"CPU": 7.0},
    "ray_version": "2.55.0",
    "python_version": "3.11.7",
    "os": "darwin",
    "arch": "arm64",
}
_JOB = {
    "job_id": ID,
    "status": "RUNNING",
    "entrypoint": "python train.py",
    "metadata": {},
    "cluster": "mac",
    "attempt": 1,
    "ray_submission_id": f"rmcs-1a2b-{ID}-1",
    "message": "runs on mac",
    "submitted_at": 1794700790.0,
    "started_at": 1794700800.0,
    "finished_at": None,
}
_ITEMS = one(thing(items=many(text(), "Ids of what is there.")), {"items": [ID]})
_CHANGED = flag("false: so it was already.")
_CORDONED = one(thing(items=many(text(), "Ids of what is there."), changed=_CHANGED), {"items": [ID], "changed": True})
_PAUSED = one(thing(changed=_CHANGED, maybe={"cluster": text(), "owner": text()}), {"cluster": "mac", "changed": True})
_REASON = {"reason": text("Why, for whoever asks.")}

FLEET = Described(
    summary="What a client has to know to submit",
    answer=one(
        thing(
            version=text(),
            control_plane=text(),
            settings=ANYTHING,
            clusters=many(text()),
            homes=many(text()),
            not_ready=or_null(text("Why it takes nothing new, as in `is draining …`; null: it does.")),
        ),
        {
            "version": "0.1.0",
            "control_plane": "1a2b3c",
            "settings": {},
            "clusters": ["mac"],
            "homes": ["/home/ann"],
            "not_ready": None,
        },
    ),
)
CLUSTERS = Described(summary="All clusters", answer=one(thing(clusters=many(named("Cluster"))), {"clusters": [MAC]}))
NODES = Described(
    summary="The nodes of all clusters",
    answer=one(
        thing(nodes=many(thing(NodeID=text(), Alive=flag(), Resources=ANYTHING, Cluster=text()))),
        {"nodes": [{"NodeID": "5f2c", "Alive": True, "Resources": {"CPU": 8.0}, "Cluster": "mac"}]},
    ),
)
DRAINED = Described(
    summary="Is nothing of ours there any more?",
    answer=one(thing(drained=or_null(flag("null: it is open for new work."))), {"drained": None}),
)
CORDON = Described(summary="Close a cluster for new work", answer=_CORDONED)
UNCORDON = Described(summary="Open a cluster for new work", answer=_CORDONED)
DECLARE_DEAD = Described(
    summary="Settle what was on a cluster that is dead",
    body=one(thing(maybe={**_REASON, "force": flag("Although it answers.")}), {"reason": "its rack burnt down"}),
    answer=_ITEMS,
)
PAUSE = Described(
    summary="Start nothing new on a cluster, or of an owner",
    body=one(thing(maybe=_REASON), {"reason": "until Monday"}),
    answer=_PAUSED,
)
RESUME = Described(summary="The end of pause", answer=_PAUSED)
PLAN = Described(
    summary="Where an item would go now, and why",
    body=one(thing(task=named("Task")), {"task": {"kind": "job", "name": "nightly", "job": {"entrypoint": "ls"}}}),
    answer=one(
        thing(cluster=or_null(text()), maybe={"candidates": many(ANYTHING)}), {"cluster": "mac", "candidates": []}
    ),
)
TRACE = Described(
    summary="What has run, as a trace for simulations",
    answer=one(text(), "submit,shape,run\n0.0,CPU=1,61.5\n", "text/csv"),
)
JOBS = Described(
    summary="Jobs that are remembered, newest first, in pages",
    answer=one(
        thing(jobs=many(named("JobInfo")), after=or_null(text("Ask with it for the next page; null: there is none."))),
        {"jobs": [_JOB], "after": None},
    ),
)
JOB = Described(summary="A job in Ray's words", answer=one(named("JobInfo"), _JOB))
HEALTH = Described(summary="It answers", answer=one(thing(status=text()), {"status": "ok"}))
READY = Described(
    summary="It can accept work",
    answer=one(thing(status=text()), {"status": "ready"}),
    others={
        503: (
            "It cannot, and why.",
            one(thing(status=text(), reason=text()), {"status": "not ready", "reason": "is being stopped"}),
        )
    },
)
OPENAPI = Described(summary="This document", answer=one(ANYTHING, {"openapi": "3.1.0", "info": {}, "paths": {}}))
SETTINGS = Described(
    summary="The settings that are in force",
    answer=one(
        thing(settings=ANYTHING, source=text("Where they came from."), clusters=many(ANYTHING, "Without secrets.")),
        {"settings": {"retries": 0}, "source": "clusters.yaml", "clusters": [{"name": "mac", "auth": None}]},
    ),
)
