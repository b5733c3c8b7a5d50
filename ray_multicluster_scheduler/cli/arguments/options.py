"""Options that several commands have: each is said in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ray_multicluster_scheduler.cli.arguments import completion
from ray_multicluster_scheduler.cli.arguments.selectors import KINDS

LONGEST_S = 86_400
"""Nobody looks again after more than a day."""
WHICH_CONFIG = "A clusters.yaml; default: of RMCS_CONFIG, RMCS_CLUSTERS, this folder, RMCS_HOME or /etc/rmcs."
AT_MOST = "At most so many."
Config = Annotated[Path | None, typer.Option("--config", help=WHICH_CONFIG)]
StateFolder = Annotated[Path | None, typer.Option("--state", help="Its state folder; default: RMCS_HOME, or ~/.rmcs.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for whoever asks.")]
ByOwner = Annotated[str | None, typer.Option("--owner", help="Only of this owner.", autocompletion=completion.owners)]
OfKind = Annotated[
    str | None,
    typer.Option(
        "--kind", help="Only of this kind: task, actor, job or gang.", autocompletion=completion.words(*KINDS)
    ),
]
Cpus = Annotated[float | None, typer.Option("--cpus", min=0, help="CPUs that all of it needs.")]
Gpus = Annotated[float | None, typer.Option("--gpus", min=0, help="GPUs that all of it needs.")]
Memory = Annotated[str | None, typer.Option("--memory", help='Memory that all of it needs, such as "8GiB".')]
Resources = Annotated[
    list[str] | None, typer.Option("--resource", help="What else it needs, as NAME=AMOUNT; may be repeated.")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Prefer clusters with this tag; may be repeated.")]
RequiredTags = Annotated[
    list[str] | None, typer.Option("--require-tag", help="Only clusters with this tag; may be repeated.")
]
