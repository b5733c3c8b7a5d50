"""SocketFuzzer: talks to a service's WebSocket in every wrong way, and looks at what comes back."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

from tests.unit.service.fuzzed_service import FuzzedService
from tests.unit.service.raw_websocket import (
    BINARY,
    CLOSE,
    CONTINUES,
    PING,
    PONG,
    TEXT,
    RawWebSocket,
    frame,
)

HANG_S = 20.0
PATH = "/api/v1/ws"
MESSAGE_BYTES = 64 * 1024
_DEFECT = 1011
_ANSWERED = {0, 101, 400, 401, 403, 404, 414, 422, 426, 431, 503}
"""What a handshake may be answered with; 0: cut off, as one that is no HTTP is; 404: it wanted no WebSocket."""
_TOLD = {"pong", "error", "events", "heartbeat", "snapshot", "reset", "missed"}
_TOLD |= {"transition", "decision", "cluster", "action", "pool_changed", "telemetry"}
_RIGHT: list[dict[str, Any]] = [
    {"type": "subscribe"},
    {"type": "subscribe", "types": ["transition", "telemetry"], "owner": "sam", "since": 0, "batch": True},
    {"type": "subscribe", "types": "cluster,action", "snapshot": True},
    {"type": "subscribe", "state": ["FAILED"], "kind": "job", "cluster": "mac", "id": "admin-job", "since": 3},
]
_ODD: list[Any] = [
    *(None, True, False, 0, -1, 2**53, 2**63, -(2**80), 10**400, 1.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", ",", ",,,", "\x00", "\ud800", "𝒳" * 50, "١٢", "9" * 5000, "subscribe", "true", "FAILED", "../..", "%00"),
    *([], [[]], [None], ["a"] * 1001, ["transition", 5], {}, {"a": {}}, [{}], ["", ""]),
]
_CODES = [0, 1, 999, 1000, 1001, 1002, 1005, 1006, 1007, 1008, 1015, 1016, 2999, 3000, 4999, 5000, 65535]
"""Of closing, right and wrong; 1011 would be said back, and is what a defect is reported by."""


class SocketFuzzer:
    """With each role in turn, and without a token. ``problems`` has one text for each kind of wrong answer."""

    def __init__(self, service: FuzzedService, seed: int = 0) -> None:
        self.service = service
        self.problems: dict[str, str] = {}
        self.answers: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._port = urlsplit(service.address).port or 0
        self._silent: list[RawWebSocket] = []
        self._log_at = 0

    def run(self, seconds: float) -> None:
        """Until the time is over; then the service has to be well."""
        end, self._log_at = time.monotonic() + seconds, len(self.service.log.read_text(errors="replace"))
        while time.monotonic() < end:
            self._talk()
        self._look_at_service()

    def close(self) -> None:
        for one in self._silent:
            one.close(rudely=True)
        self._silent.clear()

    # ---- one connection

    def _talk(self) -> None:
        role = self._chance.choice([*self.service.tokens, "nobody"])
        try:
            line = self._connect(role)
        except TimeoutError:
            self._problem("no answer to a handshake", [role])
            return
        except (OSError, UnicodeError):
            self.answers["not sent"] += 1
            return
        self.answers[f"handshake {line.status}"] += 1
        output: list[str] = [role]
        if line.status not in _ANSWERED:
            self._problem(f"the handshake was answered {line.status}", output)
        if line.status != 101:
            line.close()
            return
        polite = True
        for _ in range(self._chance.randint(1, 8)):
            act = self._chance.choice([*_POLITE, *_RUDE])
            data = act(self._chance)
            output.append(f"{act.__name__}: {data[:60]!r}")
            polite = polite and act in _POLITE
            if not line.say(data):
                break
        self._listen(line, polite, output)
        self._leave(line, polite)

    def _connect(self, role: str) -> RawWebSocket:
        chance, headers = self._chance, {}
        path = PATH
        if role != "nobody":
            headers["Authorization"] = f"Bearer {self.service.tokens[role]}"
        if chance.random() < 0.3:
            words = {**chance.choice(_RIGHT), chance.choice(["since", "types", "batch", "x", "ticket"]): _odd(chance)}
            path += "?" + "&".join(
                f"{key}={quote(str(value).encode('utf-8', 'replace'))}" for key, value in words.items()
            )
        if chance.random() < 0.03:
            path += chance.choice(["?x=\xff", "?since=\xe9", "\xff", "?" + "a" * 5000])
        if chance.random() < 0.15:
            name = chance.choice(
                [
                    "Sec-WebSocket-Key",
                    "Sec-WebSocket-Version",
                    "Sec-WebSocket-Extensions",
                    "Sec-WebSocket-Protocol",
                    "Origin",
                ]
            )
            headers[name] = chance.choice(["", "x", "7", "permessage-deflate; x=y", "\xff\xfe", "a" * 5000, "null"])
        return RawWebSocket(self._port, path, headers, upgrade=chance.random() > 0.05)

    def _listen(self, line: RawWebSocket, polite: bool, output: list[str]) -> None:
        """A valid message is answered; an invalid one is answered or cut off, and never by a defect."""
        if polite and not line.say(frame(TEXT, b"ping")):
            self._problem("cut off although nothing wrong was said", output)
            return
        end = time.monotonic() + (HANG_S if polite else 0.2)
        try:
            while True:
                received = line.hear(max(end - time.monotonic(), 0.01))
                assert received is not None
                if received.close_code == _DEFECT:
                    self._problem("closed with 1011, a defect", output)
                if received.opcode == CLOSE:
                    self.answers[f"closed {received.close_code}"] += 1
                    if polite:
                        self._problem(f"closed with {received.close_code} although nothing wrong was said", output)
                    return
                if received.opcode == TEXT and self._is_pong(received.payload, output) and polite:
                    self.answers["well"] += 1
                    return
        except TimeoutError:
            if polite:
                self._problem(f"no answer to a ping after {HANG_S:g} s", output)
        except EOFError:
            self.answers["cut off"] += 1
            if polite:
                self._problem("cut off although nothing wrong was said", output)

    def _is_pong(self, payload: bytes, output: list[str]) -> bool:
        reported = json.loads(payload)
        if reported.get("type") not in _TOLD:
            self._problem("a message of no known type", [*output, payload[:200].decode()])
        return bool(reported.get("type") == "pong")

    def _leave(self, line: RawWebSocket, polite: bool) -> None:
        how = self._chance.random()
        if how < 0.4:
            line.say(_close(self._chance))
            with suppress(TimeoutError, EOFError):
                line.hear(0.2)
        elif how < 0.5:
            with suppress(OSError):
                line.socket.shutdown(1)  # half open: it says no more
        elif how < 0.55 and polite and len(self._silent) < 20:
            self._silent.append(line)  # it is there, and takes nothing
            return
        line.close(rudely=how > 0.8)

    # ---- the service

    def _look_at_service(self) -> None:
        try:
            with urlopen(f"{self.service.address}/healthz", timeout=HANG_S) as answer:
                well = answer.status == 200
        except OSError as error:
            well = False
            self._problem(f"healthz: {error}", [])
        if not well:
            self._problem("healthz does not say that all is well", [])
        log = self.service.log.read_text(errors="replace")[self._log_at :]
        if "Traceback" in log:
            self._problem("a traceback is in the log", [log[log.index("Traceback") :][-6000:]])

    def _problem(self, what: str, output: list[str]) -> None:
        self.problems.setdefault(what, "\n  ".join([what, *output]))


# ---- what is reported


def _odd(chance: random.Random) -> Any:
    return chance.choice(_ODD)


def _written(output: object) -> bytes:
    return json.dumps(output).encode()


def subscribe(chance: random.Random) -> bytes:
    return frame(TEXT, _written(chance.choice(_RIGHT)))


def almost_subscribe(chance: random.Random) -> bytes:
    output = dict(chance.choice(_RIGHT))
    for _ in range(chance.randint(1, 3)):
        keys = [*output, "since", "types", "owner", "state", "snapshot", "batch", "x" * 200, ""]
        output[chance.choice(keys)] = _odd(chance)
    return frame(TEXT, _written(output)[: MESSAGE_BYTES - 1])


def bent_text(chance: random.Random) -> bytes:
    text = list(_written(chance.choice(_RIGHT)).decode())
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(text))
        text[at : at + chance.randint(0, 2)] = chance.choice(["", '"', "{", "\\u", "\x00", "é", "9" * 50, "NaN"])
        text = text or [" "]
    return frame(TEXT, "".join(text).encode())


def other_json(chance: random.Random) -> bytes:
    return frame(TEXT, chance.choice([_written(_odd(chance)), b"[" * 20_000, b'{"type":' * 5_000, b"ping", b" ping\n"]))


def in_pieces(chance: random.Random) -> bytes:
    text = _written(chance.choice(_RIGHT))
    at = chance.randrange(len(text))
    return (
        frame(TEXT, text[:at], fin=False)
        + (frame(PING, b"between") if chance.random() < 0.5 else b"")
        + frame(CONTINUES, text[at:])
    )


def pings(chance: random.Random) -> bytes:
    kind = chance.choice([PING, PONG])
    return b"".join(frame(kind, chance.randbytes(chance.randint(0, 125))) for _ in range(chance.randint(1, 50)))


def binary(chance: random.Random) -> bytes:
    return frame(BINARY, chance.choice([b"", b"ping", chance.randbytes(chance.randint(1, 5000)), _written(_RIGHT[0])]))


def no_utf8(chance: random.Random) -> bytes:
    return frame(TEXT, chance.choice([b"\xff\xfe", b"ping\xc3", b"\xed\xa0\x80", chance.randbytes(50)]))


def huge(chance: random.Random) -> bytes:
    size = chance.choice([MESSAGE_BYTES, MESSAGE_BYTES + 1, 2**20])
    return frame(chance.choice([TEXT, BINARY]), b"a" * size)


def says_huge(chance: random.Random) -> bytes:
    return frame(TEXT, b"a" * 10, says=chance.choice([2**16, 2**31, 2**40, 2**63 - 1, 2**64 - 1]))


def never_whole(chance: random.Random) -> bytes:
    parts = chance.randint(1, 200)
    return frame(TEXT, b"a", fin=False) + b"".join(frame(CONTINUES, b"a" * 1000, fin=False) for _ in range(parts))


def wrong_frame(chance: random.Random) -> bytes:
    return chance.choice(
        [
            frame(TEXT, b"ping", masked=False),
            frame(TEXT, b"ping", rsv=chance.randint(1, 7)),
            frame(chance.choice([3, 4, 5, 6, 7, 11, 12, 13, 14, 15]), b"x"),
            frame(CONTINUES, b"of nothing"),
            frame(PING, b"a" * 126),
            frame(PING, b"a", fin=False),
            frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"),
            b"GET / HTTP/1.1\r\n\r\n",
            chance.randbytes(chance.randint(1, 300)),
        ]
    )


def half_a_frame(chance: random.Random) -> bytes:
    whole = subscribe(chance)
    return whole[: chance.randrange(1, len(whole))]


def _close(chance: random.Random) -> bytes:
    code = chance.choice(_CODES).to_bytes(2, "big")
    return frame(CLOSE, chance.choice([b"", b"\x03", code, code + b"why", code + b"\xff\xff", code + b"a" * 123]))


def ends(chance: random.Random) -> bytes:
    return _close(chance) + subscribe(chance)


Act = Callable[[random.Random], bytes]
_POLITE: tuple[Act, ...] = (subscribe, almost_subscribe, bent_text, other_json, in_pieces, pings, binary)
"""After these it goes on: what cannot be understood is answered with an error, and nothing else changes."""
_RUDE: tuple[Act, ...] = (no_utf8, huge, says_huge, never_whole, wrong_frame, half_a_frame, ends)
"""These break the rules of WebSockets, and end the connection."""
