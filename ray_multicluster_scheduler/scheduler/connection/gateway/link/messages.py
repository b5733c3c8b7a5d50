"""The messages of the link, protocol version 4 (see `common.frames` for how they travel).

Handshake, on every connection; the join token is never sent, the link's secret once, in the first WELCOME
(which travels over TLS unless both ends are on loopback)::

    CHALLENGE  control plane → agent   {protocol, nonce}
    HELLO      agent → control plane   {protocol, cluster, agent, nonce, proof, resume, …agent_identity}
    WELCOME    control plane → agent   {proof, secret, lease_s, heartbeat_s}      secret only on the first join
    REJECT     control plane → agent   {sentence}                                 then the connection closes

``proof`` is HMAC-SHA256(key, role, nonce of the other side); the key is the one-time join token on the first
connection and the link's secret on later ones. ``agent_identity`` has the agent's ``lock_file`` (see
worker/process_lock.py), which older agents lack. Then, in any order:

    CALLS      → agent    {calls: [{id, attempt, fence, name, fn, fn_blob, args_blob, res, env, homes, home,
                          objects, ahead, short, keep, streams, actor, method, life, gang}]} + attachments; see below
    CANCEL     → agent    {id, attempt, force}
    START      → agent    {keys: [[id, attempt]]}  there are slots for these calls, which were sent ahead
    RECALL     → agent    {keys}                   return these unless they have begun; older agents return only those
                                                   that were sent ahead and wait in the agent's queue
    ACK        → agent    {keys}                   results that the agent need not keep any more
    RESUME     → agent    {keys, before, again}    after a reconnect: what is still unanswered
    PROBE      → agent    {}                       asks for a SNAPSHOT now
    FETCH      → agent    {keys}                   asks for VALUE, of values that the agent keeps
    RELEASE    → agent    {keys}                   values that the agent need not keep any more
    AWAY       → agent    {seconds}                the control plane stops for a while; the agent replies AWAY
    CLOSE      → agent    {sentence}               end everything but detached actors, then the agent
    LINGER     → agent    {seconds, token}         the same, but then wait for another program; see below
    PING/PONG  both ways  {t}                      t: the asking side's own clock; PONG repeats it
    ACCEPTED   ← agent    {keys}
    UNKNOWN    ← agent    {keys}                   never arrived (answer to RESUME), or came without a function or an
                                                   object that the agent's cache has dropped: send again, with all
    STARTED    ← agent    {calls: [[id, attempt, at, node]]}       an actor is started when its constructor is done,
                                                   a gang when all its members are; node: theirs, blanks between
    MOVED      ← agent    {slots: [[id, attempt, id, attempt]]}    the first call ended; the second has its slot
    OUTPUT     ← agent    {id, attempt, parts: [[stream, text]]}   one frame, so that FINISHED cannot overtake it
    FINISHED   ← agent    {results: [{id, attempt, status, …}]} + one attachment per result
    KEPT       ← agent    {values: [[id, attempt, age]]}   on each new connection: what is kept, for how long
    RELEASED   ← agent    {keys}                   the answer to RELEASE
    VALUE      ← agent    {id, attempt, problem, gone} + one attachment, empty if there is a problem
    SNAPSHOT   ← agent    {nodes: [{node_id, total, free, is_head}], observed}
    HEAD       ← agent    {silent_s}               the time since the head last answered; sent after 5 s, and then
                                                   as often as PING until the next SNAPSHOT

A call's ``fn_blob`` and ``args_blob`` are positions among the attachments. ``objects`` is [[digest, position], …]. A
function or object that the agent has from an earlier call has the position null. ``actor`` holds the fields of
NewActor; ``method`` is [actor id, actor attempt, name, number], and ``life`` is the process of the control plane that
sent it. ``gang`` is {strategy, of, members: [{name, fn, fn_blob, args_blob, res, objects, asynchronous}]}, and then the
call itself has no function and no arguments; in its cluster the id of a member is that of the gang, a dot and its
position. Empty keys are left out. For a method that is not called in the end, the entry is {id,
attempt, method, life} with ``cancelled: true`` or ``refused: sentence``: its number must arrive, because later ones
wait for it.

Messages of one frame arrive in order; larger ones may be overtaken. A call that was sent ``ahead`` has no slot. It
waits in the agent, first come first served among calls with equal ``res``, until a call with such a slot ends, or
until START. MOVED is sent before FINISHED of either call, and again after a reconnect, until the first call's
result was acknowledged. If no call waits, the slot goes back: FINISHED comes without MOVED. Actors' slots are not
handed on. With ``ahead: "overlap"`` the oldest waiting calls are submitted to Ray early: one for each slot, and a few
more if they are very short.

Methods of one actor are submitted to Ray in the order of their numbers, which each process of the control plane counts
from 0. When the first call of a larger ``life`` arrives, the calls of the life before that have arrived go first, in
their order, and the agent does not wait for the rest. A call that arrives after that with a smaller ``life`` is too
late: it fails, and was not run. The control plane does not store calls of methods; their clients name them to its next
process, which asks for them by RESUME with ``before: true``. Their sender is gone, so the agent does not wait for
missing calls with smaller numbers either. A method's entry in FINISHED has ``method: true``: a new process to which no
client has named it yet does not acknowledge it at once. RESUME with ``again: true`` asks for FINISHED once more, of
calls that have ended.

A call with ``keep: true`` leaves a large value in the cluster: its FINISHED has ``kept``, the number of bytes, and an
empty attachment. The agent has the value until RELEASE, or until its own end.

A call with ``streams: true`` is a generator. A call of its method ``rmcs-next:<index>:<lacking>:`` returns the value of
this index when it was yielded; it fails with the code NO_VALUE if this attempt of the generator ends before. The reader
has all values before ``lacking``, so the agent drops those; it has to keep others until they are requested. After
``rmcs-discard:`` the agent reads the rest and drops it. If the generator is a method of an actor, its call is named
``rmcs-stream:<method>``, and those for its values are methods of the actor, with the id of that call after the last
colon. Values that were answered are not sent again: the reader asks each attempt only for those that it lacks.

Output of methods belongs to their actor: OUTPUT has the actor's key, as have the ``parts`` in a method's result.

``observed`` is the physical use ({cpu, memory}, each 0..1) of a cluster of one node on Linux; null where that is not
known, as with several nodes.

The lease: the agent may work until ``lease_s`` after it *sent* the newest PING that was answered; the control plane
counts from its answer. An answer is never sent before its PING, so the agent's lease always ends first.
AWAY extends the lease by ``seconds``, until the agent is admitted again and has sent its first PING. The next process
of the control plane waits for that much longer, counted from its own start, before it declares the agent's calls dead.

The agent answers LINGER with LINGER, and the control plane closes the connection. The agent's process then executes
its program anew: a new driver for Ray, which has nothing of the old one but the job, the process id and the addresses
to dial. It dials for ``seconds``, and joins the control plane that expects it with ``token`` like a new agent.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any, NamedTuple

CHALLENGE, HELLO, WELCOME, REJECT = "challenge", "hello", "welcome", "reject"
CALLS, CANCEL, START, RECALL = "calls", "cancel", "start", "recall"
ACK, RESUME, PROBE, CLOSE = "ack", "resume", "probe", "close"
PING, PONG, AWAY, HEAD, LINGER = "ping", "pong", "away", "head", "linger"
FETCH, RELEASE, KEPT, RELEASED, VALUE = "fetch", "release", "kept", "released", "value"
ACCEPTED, UNKNOWN, STARTED, MOVED = "accepted", "unknown", "started", "moved"
OUTPUT, FINISHED, SNAPSHOT = "output", "finished", "snapshot"

LAZY_S = 0.01
"""ACCEPTED and ACK are delayed by this time, to travel with other messages: waking the other side for them alone costs
more than a short call."""
RECALLED, NOT_SENDABLE, KILLED, BEGUN = "RECALLED", "NOT_SENDABLE", "KILLED", "BEGUN"
"""Result codes that both ends use."""

JOIN_VARIABLE = "RMCS_AGENT_JOIN"
"""Environment variable of the agent's job: JSON of `connection.Join`, with the addresses and the one-time token."""

OLDEST_PYTHON = (3, 11)
DIAL_FAILED, LISTEN_FAILED, NO_RAY = "RMCS-AGENT-CANNOT-DIAL", "RMCS-AGENT-CANNOT-LISTEN", "RMCS-AGENT-NO-RAY"
REFUSED, OLD_PYTHON = "RMCS-AGENT-REFUSED", "RMCS-AGENT-OLD-PYTHON"
"""The first word that an agent prints when it gives up; the control plane finds it in the agent's log."""
TAKEN = "TAKEN"
"""Follows LISTEN_FAILED: another process has the port, but may release it."""
LISTENS = "RMCS-AGENT-LISTENS"
"""Printed by a listening agent, followed by its host and port and the fingerprint of its certificate."""
_LISTENS_LINE = re.compile(rf"{LISTENS} (\S+):(\d+) sha256:([0-9a-f]{{64}})")


class Listens(NamedTuple):
    """The address where an agent listens, and the fingerprint of its certificate."""

    host: str
    port: int
    fingerprint: str


def listens_line(host: str, port: int, fingerprint: str) -> str:
    return f"{LISTENS} {host}:{port} sha256:{fingerprint}"


def listens_at(log: str) -> Listens | None:
    """Find the line of :func:`listens_line` in the log of an agent's job; None if there is none yet."""
    for line in log.splitlines():
        found = _LISTENS_LINE.fullmatch(line.strip())
        if found is not None:
            return Listens(found[1], int(found[2]), found[3])
    return None


def message_keys(head: dict[str, Any]) -> list[tuple[str, int]]:
    """The ``keys`` of a message: ids and attempts of calls."""
    return [(str(task_id), int(attempt)) for task_id, attempt in head["keys"]]


def proof(key: str, role: str, nonce: str) -> str:
    """Proves knowledge of ``key`` without sending it."""
    return hmac.new(key.encode(), f"{role}:{nonce}".encode(), hashlib.sha256).hexdigest()


def proof_is_right(given: object, key: str, role: str, nonce: str) -> bool:
    """Compare in constant time."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(), proof(key, role, nonce).encode())


def not_sendable_text(error: Exception) -> str:
    """The error text for a call that cannot be put into a message."""
    return (
        f"the call cannot be sent: {error}; its runtime_env must be plain data (text, numbers, lists, mappings), and "
        "the function and its arguments less than 4 GiB"
    )
