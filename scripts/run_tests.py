"""Run all tests except the slow ones: first those without Ray, then those on real clusters, in parallel.

    python scripts/run_tests.py [arguments of pytest]

Thousands of tests that start processes, cut connections and kill clusters share the cores of one machine with other
load. If a few fail, they are run once more, alone, after all others; a test that fails again has failed. Tests that
pass only then are listed at the end: each is a race in a test or in the product, to be fixed. There is no second run if
more than a few fail, or if options select tests, since such options may also end the run early.
(docs/decisions/0019-retry-of-failed-tests.md)

Exit code 0, 1 if a test failed, 130 after Ctrl+C, or that of a pytest that could not run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = (
    ("tests/unit", "-n", "3", "--dist", "loadfile"),
    ("tests", "--ignore=tests/unit", "-n", "2", "--dist", "loadfile", "--durations=25"),
)
MAX_RERUNS = 3
FAILED, CUT_SHORT, NO_TESTS = 1, 2, 5
CTRL_C = 130


def main(options: Sequence[str], root: Path = ROOT, parts: Sequence[Sequence[str]] = PARTS) -> int:
    ended_with = 0
    with tempfile.TemporaryDirectory(prefix="rmcs-tests-") as cache:
        for part in parts:
            code = run([*part, *options], root, cache)
            if code == NO_TESTS and options:  # no tests in this half: the options select tests of the other half
                continue
            if code == CUT_SHORT:  # such as a file that cannot be imported: pytest did not run all tests
                return FAILED
            if code not in {0, FAILED}:
                return code
            ended_with = ended_with or code
        failed = failures(Path(cache))
        return second_look(failed, root) if ended_with and failed and not options else ended_with


def second_look(failed: Sequence[str], root: Path) -> int:
    """Run failed tests alone, one after another; 0 if all pass."""
    if len(failed) > MAX_RERUNS:
        print(f"\n{len(failed)} tests failed: too many for a coincidence, so none is run again.", flush=True)
        return FAILED
    print(f"\n{tests(len(failed))} failed; once more, alone:", *failed, sep="\n  ", flush=True)
    with tempfile.TemporaryDirectory(prefix="rmcs-tests-") as cache:
        code = run(failed, root, cache)
        again = failures(Path(cache))
    if code == 0:
        print(
            f"\nUNSTABLE: {tests(len(failed))} failed in the full run and passed alone:",
            *failed,
            sep="\n  ",
            flush=True,
        )
        return 0
    print(f"\nFAILED again, alone: {' '.join(again) or 'pytest itself'}", flush=True)
    return CTRL_C if code == CTRL_C else FAILED


def run(words: Sequence[str], root: Path, cache: str) -> int:
    """Run pytest; returns its exit code, or that of Ctrl+C. Failures are recorded in ``cache``, which is new."""
    command = [sys.executable, "-m", "pytest", *words, "-o", f"cache_dir={cache}"]
    interrupted = False
    with subprocess.Popen(command, cwd=root) as process:
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                interrupted = True  # pytest got the signal as well, and stops the clusters that its tests have started
            else:
                return CTRL_C if interrupted else code


def failures(cache: Path) -> list[str]:
    """The ids of tests that failed, and of files that could not be imported."""
    found = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(found.read_text())) if found.exists() else []


def tests(number: int) -> str:
    return "1 test" if number == 1 else f"{number} tests"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
