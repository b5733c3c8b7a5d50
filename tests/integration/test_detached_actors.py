"""A detached actor over two programs: one creates it and ends, another finds it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from ray_multicluster_scheduler.local_fleet import LocalFleet

LEAVES_IT_BEHIND = """
    import sys
    from ray_multicluster_scheduler import initialize_scheduler_environment

    class Tally:
        def __init__(self):
            self.n = 0

        def add(self, by=1):
            self.n += by
            return self.n

    scheduler = initialize_scheduler_environment(sys.argv[1])
    where = {"preferred_cluster": "mac", "fallback": "wait"}
    actor = scheduler.submit_actor(Tally, name="survivor", lifetime="detached", **where)
    mortal = scheduler.submit_actor(Tally, name="mortal")
    print(actor.add.remote(5).result(), mortal.add.remote(1).result(), flush=True)
"""

FINDS_IT = """
    import sys
    from ray_multicluster_scheduler import ConfigurationError, UnknownItemError, initialize_scheduler_environment

    class Tally:
        pass

    scheduler = initialize_scheduler_environment(sys.argv[1])
    try:
        scheduler.submit_actor(Tally, name="survivor", lifetime="detached")
    except ConfigurationError as error:
        print("taken", flush=True)
    try:
        scheduler.get_actor("mortal")
    except UnknownItemError:
        print("mortal is gone", flush=True)
    actor = scheduler.get_actor("survivor")
    print(actor.add.remote(1).result(60), actor.cluster, flush=True)
    try:
        actor.subtract.remote(1).result(60)
    except AttributeError as error:
        print("no such method", flush=True)
    scheduler.kill(actor)
    try:
        actor.ready(30)
        import time
        time.sleep(2)
    except Exception:
        pass
    try:
        scheduler.get_actor("survivor")
    except UnknownItemError:
        print("killed", flush=True)
"""


def test_a_detached_actor_outlives_its_program(fleet: LocalFleet, tmp_path: Path) -> None:
    def run(program: str) -> tuple[str, str]:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(program))
        command = [sys.executable, str(path), str(fleet.config_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr

    out, reported = run(LEAVES_IT_BEHIND)
    assert out == "5 1\n"
    assert "ended with the program: Tally actor-" in reported
    assert "detached, so left alone: Tally actor-" in reported
    out, _ = run(FINDS_IT)
    assert out.splitlines() == ["taken", "mortal is gone", "6 mac", "no such method", "killed"]
