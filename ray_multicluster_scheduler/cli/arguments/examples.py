"""Examples of each command, printed at the end of its help. A test parses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "up": ("rmcs up --config clusters.yaml", "rmcs up --port 0 --state /srv/rmcs"),
    "down": ("rmcs down", "rmcs down --drain 600"),
    "status": ("rmcs status", "rmcs status --watch"),
    "top": ("rmcs top --every 5",),
    "job submit": (
        "rmcs job submit --working-dir . -- python train.py --epochs 90",
        "rmcs job submit --no-wait --gpus 2 --tag linux -- python train.py",
        "rmcs job submit --pool nlp --label team=a --priority 2.5 -- python run.py",
    ),
    "job status": ("rmcs job status last",),
    "job logs": ("rmcs job logs --follow last",),
    "job stop": ("rmcs job stop nightly-2026-11-15",),
    "job delete": ("rmcs job delete nightly-2026-11-15",),
    "job list": ("rmcs job list --limit 10",),
    "task list": ("rmcs task list --state FAILED --since 12h", "rmcs task list --kind job --cluster mac"),
    "task show": ("rmcs task show last",),
    "task logs": ("rmcs task logs --follow last", "rmcs task logs --attempt 1 --stream stderr task-9f3c"),
    "task cancel": ('rmcs task cancel task-9f3c task-9f3d --reason "too late"', "rmcs task cancel all"),
    "task retry": ("rmcs task retry task-9f3c", "rmcs task retry all"),
    "task hold": ('rmcs task hold task-9f3c --reason "the disk is full"',),
    "task release": ("rmcs task release task-9f3c",),
    "task priority": ("rmcs task priority task-9f3c 10",),
    "actor list": ("rmcs actor list",),
    "actor kill": ("rmcs actor kill counter",),
    "serving deploy": (
        "rmcs serving deploy app.py:Ocr --name ocr --replicas 2 --gpus 1 --tags a100",
        "rmcs serving deploy app.py:Embed --name embed --max-batch 16",
    ),
    "serving list": ("rmcs serving list",),
    "serving status": ("rmcs serving status", "rmcs serving status ocr"),
    "serving scale": ("rmcs serving scale ocr 4",),
    "serving delete": ("rmcs serving delete ocr",),
    "serving up": ("rmcs serving up --config config.yaml --port 8102",),
    "queue": ("rmcs queue", "rmcs queue --owner ann --limit 10"),
    "queue pause": ('rmcs queue pause --cluster mac --reason "until Monday"', "rmcs queue pause --owner ann"),
    "queue resume": ("rmcs queue resume --cluster mac",),
    "clusters": ("rmcs clusters", "rmcs clusters --config clusters.yaml"),
    "clusters apply": ("rmcs clusters apply clusters.yaml --dry-run",),
    "clusters cordon": ('rmcs clusters cordon mac --reason "new disk"',),
    "clusters drain": ("rmcs clusters drain mac --timeout 600",),
    "clusters uncordon": ("rmcs clusters uncordon mac",),
    "clusters declare-dead": ('rmcs clusters declare-dead mac --reason "sold"',),
    "clusters list": ("rmcs clusters list --no-refresh",),
    "clusters show": ("rmcs clusters show mac",),
    "clusters check": ("rmcs clusters check mac",),
    "explain": ("rmcs explain last", "rmcs explain NO_CAPACITY"),
    "preempt": ("rmcs preempt --dry-run last", "rmcs preempt --dry-run task-9f3c -o json"),
    "plan": (
        "rmcs plan --cpus 16 --require-tag linux",
        "rmcs plan --cpus 16 --pool train",
        "rmcs plan --kind job --preferred-cluster mac --fallback wait",
    ),
    "events": ("rmcs events --since 12h --types transition", "rmcs events --follow --id last"),
    "doctor": ("rmcs doctor", "rmcs doctor --deep"),
    "config check": ("rmcs config check clusters.yaml",),
    "config show": ("rmcs config show", "rmcs config show --config clusters.yaml"),
    "config log-level": ("rmcs config log-level debug",),
    "owner list": ("rmcs owner list",),
    "owner show": ("rmcs owner show ann",),
    "owner set": ("rmcs owner set ann --max-running 10 --max-gpus none", "rmcs owner set ann --reset"),
    "pool list": ("rmcs pool list", "rmcs pool list -o json"),
    "pool show": ("rmcs pool show train",),
    "pool create": (
        "rmcs pool create train --quota CPU=16 --cohort research --label team=nlp",
        "rmcs pool create big --quota CPU=64 --quota memory=512GiB",
        "rmcs pool create lab --cluster-quota mac:CPU=4 --owner ann --protected",
    ),
    "pool resize": ("rmcs pool resize train --quota CPU=32 --quota GPU=none",),
    "pool relabel": ("rmcs pool relabel train team=nlp stage-",),
    "pool delete": ("rmcs pool delete train", "rmcs pool delete train --drain"),
    "pool apply": ("rmcs pool apply -f pools.yaml --prune",),
    "token create": ('rmcs token create ann --role submitter --expires 30d --note "her laptop"',),
    "token list": ("rmcs token list",),
    "token revoke": ("rmcs token revoke 3f2a",),
    "debug-dump": ("rmcs debug-dump report.tar.gz",),
    "trace": ("rmcs trace week.csv",),
    "simulate": (
        "rmcs simulate --nodes 'mac=2x{CPU:8}' --synthetic 'items=1000 over=2h'",
        "rmcs simulate --config clusters.yaml --fleet sizes.yaml --trace week.csv",
    ),
    "replay": ("rmcs replay --quiet history.jsonl",),
    "fleet up": ("rmcs fleet up --clusters 3 --cpus 2",),
    "fleet down": ("rmcs fleet down",),
    "fleet status": ("rmcs fleet status",),
    "demo": ("rmcs demo",),
    "version": ("rmcs version -o json",),
}
TITLE = "Examples:"


def with_examples(command: Any, words: str) -> Any:
    """Add the examples to the help of this command and of those below it; returns the command."""
    if words in EXAMPLES:
        command.epilog = "\n".join(("\b", TITLE, *(f"  {one}" for one in EXAMPLES[words])))
    for name, below in getattr(command, "commands", {}).items():
        with_examples(below, f"{words} {name}")
    return command
