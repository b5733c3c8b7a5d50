"""Kill a service repeatedly while real clusters work for it, then check that every guarantee held.

python scripts/chaos_store.py [--rounds 50] [--seed 1] [--out FOLDER]

Starts two local Ray clusters of its own. Exit code 1 if an accepted item was lost or ran twice, or if store, files and
answers disagree.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.chaos_store import ChaosStore, summary  # noqa: E402
from tests.support.two_clusters import two_clusters  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None, help="keep notes, store and log in this folder")
    given = parser.parse_args()
    folder = given.out or Path(tempfile.mkdtemp(prefix="rmcs-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    with two_clusters() as fleet:
        chaos = ChaosStore(Path(fleet.config_path), folder, given.seed, lambda text: print(text, flush=True))
        broken = chaos.run(given.rounds)
    print(summary(chaos))
    for sentence in broken:
        print(f"BROKEN: {sentence}")
    print(f"{given.rounds} rounds, {len(broken)} guarantees violated; notes, store and log: {folder}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
