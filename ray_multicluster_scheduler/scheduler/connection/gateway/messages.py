"""The messages of the link, protocol version 1 (see `common.frames` for how they travel).

Handshake, on every connection; the join token is never sent, the link's secret once, in the first WELCOME
(which travels over TLS unless both ends are on loopback)::

    CHALLENGE  control plane → agent   {protocol, nonce}
    HELLO      agent → control plane   {protocol, cluster, agent, nonce, proof, resume, …who I am}
    WELCOME    control plane → agent   {proof, secret, lease_s, heartbeat_s}      secret only on the first join
    REJECT     control plane → agent   {sentence}                                 then the connection closes

``proof`` is HMAC-SHA256(key, role, nonce of the other side); the key is the one-time join token on the first
connection and the link's secret on later ones. Then, in any order:

    CALLS      → agent    {calls: [{id, attempt, fence, name, fn, fn_blob, args_blob, res, env, homes, home}]}
                          + attachments
    CANCEL     → agent    {id, attempt, force}
    ACK        → agent    {keys: [[id, attempt]]}          results that need not be kept any more
    RESUME     → agent    {keys: [[id, attempt]]}          after a reconnect: what is still unanswered here
    PROBE      → agent    {}                               asks for a SNAPSHOT now
    CLOSE      → agent    {sentence}                       end everything, then yourself
    PING/PONG  both ways  {t}                              t: the asking side's own clock; PONG repeats it
    ACCEPTED   ← agent    {keys}
    UNKNOWN    ← agent    {keys}                           never arrived (answer to RESUME), or came without a function
                                                           that is not kept here any more: send again, with it
    STARTED    ← agent    {calls: [[id, attempt, at, node]]}
    OUTPUT     ← agent    {id, attempt, parts: [[stream, text]]}         one frame, so that FINISHED cannot overtake it
    FINISHED   ← agent    {results: [{id, attempt, status, …}]} + one attachment per result with a payload
    SNAPSHOT   ← agent    {nodes: [{node_id, total, free, is_head}], observed}

``observed`` is the physical use ({cpu, memory}, each 0..1) of a cluster of one node on Linux; null where it is not
known, as with several nodes.

The lease: the agent may work until ``lease_s`` after it *sent* the newest PING that was answered, and the control
plane counts from when it answered. An answer is never sent before its question, so however long either was
under way, the agent's time is over first.
"""

from __future__ import annotations

import hashlib
import hmac

CHALLENGE, HELLO, WELCOME, REJECT = "challenge", "hello", "welcome", "reject"
CALLS, CANCEL, ACK, RESUME, PROBE, CLOSE = "calls", "cancel", "ack", "resume", "probe", "close"
PING, PONG = "ping", "pong"
ACCEPTED, UNKNOWN, STARTED, OUTPUT, FINISHED, SNAPSHOT = (
    "accepted",
    "unknown",
    "started",
    "output",
    "finished",
    "snapshot",
)

JOIN_VARIABLE = "RMCS_AGENT_JOIN"
"""Environment variable of the agent's job: JSON with where to dial and the one-time token."""

OLDEST_PYTHON = (3, 11)
DIAL_FAILED, NO_RAY, REFUSED, OLD_PYTHON = (
    "RMCS-AGENT-CANNOT-DIAL",
    "RMCS-AGENT-NO-RAY",
    "RMCS-AGENT-REFUSED",
    "RMCS-AGENT-OLD-PYTHON",
)
"""Words an agent that gives up prints first, so that its log can be told from any other."""


def proof(key: str, role: str, nonce: str) -> str:
    """What shows that one knows ``key`` without saying it."""
    return hmac.new(key.encode(), f"{role}:{nonce}".encode(), hashlib.sha256).hexdigest()


def proof_is_right(given: object, key: str, role: str, nonce: str) -> bool:
    """Compare without telling by timing how much of it was right."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(), proof(key, role, nonce).encode())
