"""What the routes of the queue and of owners answer."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model.item_fields import MOST_PRIORITY
from ray_multicluster_scheduler.control_plane.admin_api.schemas.items import ID
from ray_multicluster_scheduler.control_plane.admin_api.schemas.route_description import Described, one
from ray_multicluster_scheduler.control_plane.admin_api.schemas.shapes import (
    by_name,
    flag,
    many,
    number,
    or_null,
    text,
    thing,
    whole,
)
from ray_multicluster_scheduler.control_plane.config.settings import MOST_OF_AN_OWNER

_LIMITS = {
    "weight": number("Its share at equal priority.", minimum=1e-6, maximum=1e6),
    "max_queued": or_null(whole("So many may wait; more are refused.", minimum=0, maximum=MOST_OF_AN_OWNER)),
    "max_running": or_null(whole("So many may be on clusters.", minimum=0, maximum=MOST_OF_AN_OWNER)),
    "max_gpus": or_null(number("So many it may hold on clusters.", minimum=0, maximum=MOST_OF_AN_OWNER)),
    "max_priority": or_null(whole("What may be asked for at the most.", minimum=-MOST_PRIORITY, maximum=MOST_PRIORITY)),
}
_OWNER = thing(
    owner=text(),
    waiting=whole(),
    running=whole("On a cluster, or on the way there."),
    limits=thing("null: no limit.", **_LIMITS),
    changed=flag("They were said since, and hold instead of those in the settings."),
    paused=or_null(text("Why its queue is paused; null: it is not.")),
)
_ANN = {
    "owner": "ann",
    "waiting": 1,
    "running": 2,
    "limits": {"weight": 1.0, "max_queued": None, "max_running": 10, "max_gpus": None, "max_priority": None},
    "changed": False,
    "paused": None,
}
QUEUE = Described(
    summary="What waits, and why",
    answer=one(
        thing(
            depth=whole("How many wait."),
            states=by_name(whole()),
            kinds=by_name(whole()),
            owners=by_name(whole()),
            on_clusters=by_name(whole(), "How many wait no more: DISPATCHING, RUNNING and LOST, where there are any."),
            lanes=many(
                thing(queue=text("task or job"), cluster=or_null(text("Preferred; null: any.")), waiting=whole()),
                "Of everybody, as the brain has them; empty where only one owner is asked for.",
            ),
            waiting=many(
                thing(
                    id=text(),
                    kind=text(),
                    name=text(),
                    owner=text(),
                    priority=whole(),
                    state=text(),
                    submitted_at=number(),
                    waiting_since=number("Since its submission, or since its last attempt that ran was over."),
                    position=or_null(
                        whole("In the queue; 1 is next. null: it does not stand there, as if it is held.")
                    ),
                    code=text("Why it waits, for programs."),
                    sentence=text("The same for people."),
                    held=flag("Somebody keeps it from starting."),
                )
            ),
            after=or_null(text("Ask with it for the next page; null: there is none.")),
        ),
        {
            "depth": 1,
            "states": {"QUEUED": 1},
            "kinds": {"job": 1},
            "owners": {"ann": 1},
            "on_clusters": {"RUNNING": 2},
            "lanes": [{"queue": "job", "cluster": None, "waiting": 1}],
            "waiting": [
                {
                    "id": ID,
                    "kind": "job",
                    "name": "nightly",
                    "owner": "ann",
                    "priority": 0,
                    "state": "QUEUED",
                    "submitted_at": 1794700790.0,
                    "waiting_since": 1794700790.0,
                    "position": 1,
                    "code": "NO_CAPACITY",
                    "sentence": "mac: 1 CPU is not free on any one node",
                    "held": False,
                }
            ],
            "after": None,
        },
    ),
)
OWNERS = Described(
    summary="Owners: what they have, and may have", answer=one(thing(owners=many(_OWNER)), {"owners": [_ANN]})
)
OWNER = Described(summary="One owner", answer=one(_OWNER, _ANN))
SET_LIMITS = Described(
    summary="Other limits for an owner",
    body=one(
        thing("Those that are not named are as they are by default: no limit, and weight 1.", maybe=_LIMITS),
        {"weight": 1, "max_running": 10},
    ),
    answer=one(_OWNER, {**_ANN, "changed": True}),
)
RESET_LIMITS = Described(summary="The limits in the settings again", answer=one(_OWNER, _ANN))
