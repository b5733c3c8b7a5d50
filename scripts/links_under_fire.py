"""Inject network faults between a service and its clusters, one after the other, under a steady load.

python scripts/links_under_fire.py [--only WORD …] [--write] [--out FOLDER]

Starts two local Ray clusters of its own and reaches them through forwarders that can impair the traffic. For each fault
it prints when it was detected and when the cluster was usable again. Exit code 1 if a guarantee was violated: work was
lost, done twice, overlapped, or failed with a wrong reason. With --write the table goes to docs/links.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.fault_history import row, table  # noqa: E402
from tests.support.links_under_fire import LinksUnderFire  # noqa: E402
from tests.support.network_faults import all_faults  # noqa: E402
from tests.support.two_clusters import two_clusters  # noqa: E402

PAGE = ROOT / "docs" / "links.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="only faults with one of these words in their names")
    parser.add_argument("--write", action="store_true", help=f"write the table to {PAGE.relative_to(ROOT)}")
    parser.add_argument("--out", type=Path, default=None, help="keep notes, store and log in this folder")
    given = parser.parse_args()
    if given.write and given.only:
        parser.error("--write needs all faults: a partial table would replace the complete one")
    faults = [one for one in all_faults() if not given.only or any(word in one.name for word in given.only)]
    if not faults:
        parser.error(f"no fault has such a name; known: {'; '.join(one.name for one in all_faults())}")
    folder = given.out or Path(tempfile.mkdtemp(prefix="rmcs-fire-"))
    folder.mkdir(parents=True, exist_ok=True)
    with two_clusters() as fleet:
        judged = LinksUnderFire(fleet, folder, log=lambda text: print(text, flush=True)).run(faults)
    measured = table(row(fault_run, violations) for fault_run, violations in judged)
    print(measured)
    count = 0
    for fault_run, violations in judged:
        for sentence in violations:
            count += 1
            print(f"BROKEN ({fault_run.fault}): {sentence}")
    if given.write:
        write(measured)
    print(f"{len(judged)} faults, {count} guarantees violated; notes, store and log: {folder}")
    return 1 if count else 0


def write(table: str) -> None:
    """Replace the table in docs/links.md."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
