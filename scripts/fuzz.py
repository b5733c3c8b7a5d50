"""Fuzz a service: valid and invalid requests by its OpenAPI document, with each role, then malformed WebSocket
messages.

python scripts/fuzz.py [--minutes 10] [--seed N] [--examples 10]

Exit code 1 if there was a defect (500, or a traceback in the log), a hang, an answer that violates its schema, or a
leak after all clients have gone: files, tasks, event subscribers, memory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.unit.service.fuzzed_service import FuzzedService  # noqa: E402 - needs the path above
from tests.unit.service.fuzzing import Fuzzer  # noqa: E402 - the same
from tests.unit.service.leaks import leaks  # noqa: E402 - the same
from tests.unit.service.socket_fuzzing import SocketFuzzer  # noqa: E402 - the same

EVERY_S = 60.0
_HTTP = 0.75
"""The share of the time for HTTP; the WebSocket has the rest."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="default: random")
    parser.add_argument("--examples", type=int, default=10, help="consecutive requests of one kind")
    given = parser.parse_args()
    seed = time.time_ns() % 2**32 if given.seed is None else given.seed
    print(f"fuzz: seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rmcs-fuzz-") as folder:
        service = FuzzedService(Path(folder))
        fuzzer = Fuzzer(service, seed)
        sockets = SocketFuzzer(service, seed)
        fuzzer.run(10.0, examples=1)  # created once, so not a leak
        sockets.run(2.0)
        before, end = service.holds(), time.monotonic() + 60 * given.minutes
        print(f"fuzz: holds {before}", flush=True)
        while (left := end - time.monotonic()) > 0:
            fuzzer.run(min(left, EVERY_S) * _HTTP, given.examples)
            sockets.run(min(left, EVERY_S) * (1 - _HTTP))
            http, websocket = sum(fuzzer.answers.values()), sum(sockets.answers.values())
            print(f"fuzz: {http} answers, {websocket} of the WebSocket, holds {service.holds()}", flush=True)
        fuzzer.close()
        sockets.close()
        held = leaks(service, before)
        service.end()
    print(f"fuzz: answers by status: {dict(fuzzer.answers.most_common())}")
    print(f"fuzz: of the WebSocket: {dict(sockets.answers.most_common())}")
    problems = [*fuzzer.problems.values(), *sockets.problems.values()]
    for text in problems:
        print(f"\n{text}")
    if held:
        print(f"fuzz: leaked, before and after: {held}")
    print(f"fuzz: {len(problems)} kinds of wrong answers, {len(held)} leaks")
    return 1 if problems or held else 0


if __name__ == "__main__":
    raise SystemExit(main())
