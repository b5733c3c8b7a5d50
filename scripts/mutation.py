"""Mutation testing: try a random sample of small changes to the pure core against the tests that reach them.

python scripts/mutation.py [--sample 500] [--seed 1] [--workers 2] [--only scheduler/queue] [--floor 0.8]

The working tree is not touched: each worker has a copy in a temporary folder. A first run of all tests with coverage
shows which tests reach which line; for each mutant only those run, the shortest first, until one fails. A mutant that
no test reaches survives; one that exceeds its time counts as killed, and is also counted separately. Exit code 1 if
fewer than ``--floor`` of the sample were killed, 2 if the tests fail without a change.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants import Mutant, mutants

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "ray_multicluster_scheduler"
FOLDERS = [f"{PACKAGE}/scheduler/{name}" for name in ("queue", "policy", "cluster", "lifecycle", "pools")]
LEFT_OUT = {"task_lifecycle_manager.py", "transition_log.py"}  # they do I/O
TESTS = [f"tests/unit/{name}" for name in ("queue", "policy", "cluster", "lifecycle", "pools", "scenarios")]
PYTEST = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "quick_hypothesis"]
PROFILE = """
import resource
from hypothesis import Phase, settings
settings.register_profile("mutation", phases=[Phase.explicit, Phase.generate], database=None, derandomize=True)
def pytest_configure(config):
    settings.load_profile("mutation")
    resource.setrlimit(resource.RLIMIT_AS, (4 * 1024**3, resource.RLIM_INFINITY))
"""
"""Hypothesis need not shrink a counter-example, and an endless loop must not use all memory."""


@dataclass(frozen=True)
class Case:
    """A mutant of one file, and the tests that reach its line; None means all tests."""

    path: str
    mutant: Mutant
    tests: tuple[str, ...] | None
    patience_s: float

    def __str__(self) -> str:
        return f"{self.path}:{self.mutant.line}: {self.mutant}"


class Copy:
    """A copy of the source and tests, in which one mutant at a time is applied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (PACKAGE, "tests", "bench", "docs", "examples"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        (folder / "quick_hypothesis.py").write_text(PROFILE)

    def run(self, arguments: Sequence[str], timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
        """Run pytest in a process of its own. Raises TimeoutExpired if it had to be killed."""
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(self.folder)}
        command = [sys.executable, *PYTEST, *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def verdict(self, case: Case) -> str:
        """``killed``, ``timeout`` or ``survived``."""
        if case.tests is not None and not case.tests:
            return "survived"
        path = self.folder / case.path
        before = path.read_text()
        chosen = self.folder / "chosen-tests"
        chosen.write_text("\n".join(case.tests or TESTS))
        path.write_text(case.mutant.applied(before))
        try:
            done = self.run([f"@{chosen}"], case.patience_s)
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:
            path.write_text(before)
        return "killed" if done.returncode else "survived"


@dataclass(frozen=True)
class Reach:
    """Which tests reach which line of which file, the shortest first, and how long each takes under coverage.

    Coverage makes a test several times slower, so that this is a safe timeout without it.
    """

    tests: dict[str, dict[int, list[str]]]
    durations: dict[str, float]

    def case(self, path: str, mutant: Mutant) -> Case:
        names = self.tests.get(path, {}).get(mutant.line, [])
        if names is TESTS:
            return Case(path, mutant, None, 20 + sum(self.durations.values()))
        return Case(path, mutant, tuple(names), 20 + sum(self.durations[name] for name in names))


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="rmcs-mutation-") as folder:
        first = Copy(Path(folder) / "0")
        _say("running all tests once, without a mutant")
        reach = _reach(first)
        if reach is None:
            return 2
        cases = _sample(options, reach)
        _say(f"{len(cases)} mutants, {options.workers} at a time")
        copies = [first, *(Copy(Path(folder) / str(number)) for number in range(1, options.workers))]
        verdicts = _judge_all(cases, copies)
    return _report(verdicts, options.floor)


def _reach(copy: Copy) -> Reach | None:
    """None if a test fails without any mutant."""
    from coverage import CoverageData

    (copy.folder / ".coveragerc").write_text("[run]\nbranch = false\n")
    watch = [*(f"--cov={folder}" for folder in FOLDERS), "--cov-config=.coveragerc", "--cov-report="]
    done = copy.run([*TESTS, *watch, "--cov-context=test", "--durations=0", "-vv"])
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-1000:], "The tests fail without a mutant.", sep="\n")
        return None
    data = CoverageData(str(copy.folder / ".coverage"))
    data.read()
    durations = _durations(done.stdout)

    def tests(contexts: list[str]) -> list[str]:
        if "" in contexts:  # it also runs when the module is imported
            return TESTS
        return sorted({one.partition("|")[0] for one in contexts}, key=lambda name: durations[name])

    reached = {
        os.path.relpath(path, copy.folder): {
            line: tests(contexts) for line, contexts in data.contexts_by_lineno(path).items()
        }
        for path in data.measured_files()
    }
    return Reach(reached, durations)


def _durations(output: str) -> dict[str, float]:
    """Seconds by test, as ``--durations`` prints them; tests that it leaves out are very short."""
    durations: dict[str, float] = defaultdict(float)
    for line in output.splitlines():
        words = line.split(maxsplit=2)
        if len(words) == 3 and words[1] == "call" and words[0].endswith("s"):
            durations[words[2]] = float(words[0][:-1])
    return durations


def _sample(options: argparse.Namespace, reach: Reach) -> list[Case]:
    candidates = [
        (path, mutant) for path in _files() if options.only in path for mutant in mutants((ROOT / path).read_text())
    ]
    _say(f"{len(candidates)} mutants are possible")
    chosen = random.Random(options.seed).sample(candidates, min(options.sample, len(candidates)))
    return [reach.case(path, mutant) for path, mutant in chosen]


def _files() -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name not in LEFT_OUT:
                yield str(path.relative_to(ROOT))


def _judge_all(cases: list[Case], copies: list[Copy]) -> dict[Case, str]:
    waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    verdicts: dict[Case, str] = {}

    def work(copy: Copy) -> None:
        while True:
            try:
                case = waiting.get_nowait()
            except queue.Empty:
                return
            verdicts[case] = copy.verdict(case)
            _say(f"{len(verdicts)}/{len(cases)} {verdicts[case]:9}{case}")

    threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {case: verdicts[case] for case in cases}


def _report(verdicts: dict[Case, str], floor: float) -> int:
    counts = Counter(verdicts.values())
    killed = counts["killed"] + counts["timeout"]
    score = killed / len(verdicts) if verdicts else 0.0
    print("survivors:")
    for case in sorted((one for one, verdict in verdicts.items() if verdict == "survived"), key=str):
        print(f"  {case}{'  (no test reaches it)' if case.tests == () else ''}")
    print(f"score {score:.1%} of {len(verdicts)}: {killed} killed ({counts['timeout']} of them by timeout)")
    return 0 if score >= floor else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=500, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="selects the sample")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="part of a path: only mutants of such files")
    parser.add_argument("--floor", type=float, default=0.8, help="exit with 1 below this score")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
