"""What stands in paths and queries: a sentence and an example for each name, which means the same everywhere but where
a path stands before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.common.blob_names import digest_of

PAYLOAD = b"hello"
"""What the examples put as a payload."""

PARAMETERS: Mapping[str, tuple[str, Any]] = {
    "item_id": ("The id of an item.", "nightly-2026-11-15"),
    "job_id": ("The id of a job.", "nightly-2026-11-15"),
    "call_id": ("The id of a call of an actor's method.", "call-1"),
    "digest": ("The BLAKE2b hash (16 bytes, as hexadecimal digits) of a payload.", digest_of(PAYLOAD)),
    "name": ("A name: of the cluster, actor, owner or item that is meant.", "mac"),
    "what": ("cluster or owner: whose queue it is.", "cluster"),
    "state": ("Only items in one of these states, with commas between them.", "QUEUED,RUNNING"),
    "kind": ("Only items of this kind: task, actor, job or gang.", "job"),
    "owner": ("Only items of this owner.", "ann"),
    "begins": ("Only items whose ids begin so.", "nightly"),
    "since": ("Only items that were submitted then or later, in seconds since 1970.", 0.0),
    "until": ("Only items that were submitted before then, in seconds since 1970.", 4000000000.0),
    "hours": ("So many of the last hours, 24 at the most.", 1),
    "cluster": ("Only what is on this cluster, or was last.", "mac"),
    "after": ("What the page before said: the next page begins after it.", "9"),
    "limit": ("At most so many, 1,000 at the most.", 100),
    "refresh": ("Ask the clusters themselves first.", False),
    "attempt": ("Of this attempt; the newest one by default.", 1),
    "stream": ("Only what was printed to stdout, or to stderr.", "stdout"),
    "follow": ("Go on as it comes, until the item is over; with `attempt` until that one is.", False),
    "dry_run": ("Change nothing: say what would be.", False),
    "token_id": ("The id of a token, which is no secret.", "k3v9x2ab"),
    "force": ("Also the last token of an admin.", False),
    "types": (
        "Any of transition, decision, cluster, action (these four by default) and telemetry, with commas between them.",
        "transition,decision",
    ),
    "id": ("Only what happens to these items, with commas between them.", "nightly-2026-11-15"),
    "snapshot": ("First how everything is now.", False),
    "ticket": ("For a page that cannot send a header; see POST /api/v1/ticket.", ""),
    "/api/v1/owners/{owner} owner": ("Whose they are.", "ann"),
    "/api/v1/events since": ("First what was told after the event with this number.", 0),
    "client": ("The name that the client gave to its mailbox.", "me"),
}
