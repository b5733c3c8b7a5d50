"""`rmcs clusters apply`: other clusters for a service that runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli.layout.output import Format, Output, emit_words, say
from ray_multicluster_scheduler.cli.service.client import Address, connect, path_of, with_query

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.config import ClusterConfig
    from ray_multicluster_scheduler.control_plane.config.config_warnings import Doubt


def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A clusters.yaml.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Give a service that runs the clusters of a file.

    It has all of them then, and no others. A cluster that goes, or moves to another address, must be empty. It holds
    until the next start of the service, which reads its own file.
    """
    said, odd = _document(file)
    answer = connect(address).post(with_query(path_of("clusters", "apply"), {"dry_run": dry_run}), said)
    emit_words(answer, output, lambda: "\n".join(applied_lines(answer, dry_run=dry_run)))
    for one in odd:
        say(f"! {one.sentence}; what to do: {one.mend} (more: rmcs explain {one.code})")


def _document(file: Path) -> tuple[dict[str, Any], list[Doubt]]:
    """What the file says, checked, and with its relative paths made absolute; and what is odd about it. Raises
    ConfigurationError."""
    from ray_multicluster_scheduler.control_plane.config import load_config
    from ray_multicluster_scheduler.control_plane.config.config_warnings import doubts
    from ray_multicluster_scheduler.control_plane.config.yaml_text import parse_yaml

    config = load_config(file.absolute())
    said: dict[str, Any] = {"clusters": [_entry(one) for one in config.clusters]}
    settings = parse_yaml(file.read_text(encoding="utf-8"), str(file)).get("settings")
    return {**said, "settings": settings} if settings else said, doubts(config.clusters)


def _entry(cluster: ClusterConfig) -> dict[str, Any]:
    entry = cluster.model_dump(mode="json", exclude_unset=True)
    if cluster.auth_token is not None:  # as it stands there: ${NAME} is looked up where it is used
        entry["auth_token"] = cluster.auth_token.get_secret_value()
    return entry


def applied_lines(answer: dict[str, list[str]], *, dry_run: bool) -> Iterator[str]:
    """What became of each cluster, or would."""
    would = "would be " if dry_run else ""
    for what in ("added", "changed", "removed"):
        yield from (f"{name}: {would}{what}" for name in answer[what])
    yield from (f"{name}: unchanged" for name in answer["unchanged"])
    for name in answer["not_empty"]:
        yield f"{name}: is not empty, so nothing of this would be done; `rmcs clusters drain {name}` first"
    if answer["not_applied"]:
        yield f"settings that differ hold from the next start on: {', '.join(answer['not_applied'])}"
