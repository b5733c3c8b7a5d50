"""The variants that `rmcs simulate --compare` runs: policies, settings and cluster sizes."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ray_multicluster_scheduler.cli.output_files import write_file
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config import load_config
from ray_multicluster_scheduler.control_plane.config.fleet_config import build_fleet
from ray_multicluster_scheduler.control_plane.config.loader import NothingConfiguredError
from ray_multicluster_scheduler.control_plane.config.yaml_text import parse_yaml
from ray_multicluster_scheduler.simulation import Result, SimulatedFleet, Workload, load_fleet, simulate
from ray_multicluster_scheduler.simulation.fleet_file import sized_names
from ray_multicluster_scheduler.simulation.history import to_dict

ROUND_ROBIN = "round_robin"
"""No scores at all: all clusters tie, and ties are broken round robin."""
_UNUSED_DASHBOARD = "http://simulated.invalid:8265"
_WORDS = ("policy", "set", "nodes", "fleet")


@dataclass(frozen=True)
class Variant:
    """One run: changes of clusters.yaml, and the sizes of its clusters."""

    label: str
    weights: dict[str, float] | None
    settings: dict[str, Any]
    nodes: dict[str, str]
    sizes: Path | None

    @classmethod
    def parse(cls, label: str, policy: list[str], settings: list[str], nodes: list[str], sizes: Path | None) -> Self:
        """From the command line. Raises ConfigurationError."""
        values = dict(_pair("--set", text) for text in settings)
        return cls(
            label,
            _weights(policy),
            {key: parse_yaml(value, f"--set {key}") for key, value in values.items()},
            dict(_pair("--nodes", text) for text in nodes),
            sizes,
        )

    def compared(self, text: str) -> Variant:
        """This one, changed by the value of --compare: ``NAME: words``; without a name, the words are the label. Raises
        ConfigurationError."""
        name, sign, rest = text.partition(": ")
        label, rest = (name.strip(), rest) if sign and name.strip() else (text.strip(), text)
        found: dict[str, list[str]] = {word: [] for word in _WORDS}
        try:
            words = shlex.split(rest)
        except ValueError as error:
            raise ConfigurationError(f"--compare {text!r}: {error}.", next_step="close the quotation mark") from None
        for word in words:
            what, sign, value = word.partition(":")
            if not sign or what not in found:
                raise ConfigurationError(
                    f"--compare {text!r}: {word!r} is not valid.",
                    next_step="use words such as policy:headroom=1, set:KEY=VALUE, nodes:NAME=4x{CPU:16}, fleet:PATH",
                )
            found[what].append(value)
        sizes = Path(found["fleet"][-1]) if found["fleet"] else self.sizes
        own = Variant.parse(label, found["policy"], found["set"], found["nodes"], sizes)
        return replace(
            own,
            weights=self.weights if own.weights is None else own.weights,
            settings={**self.settings, **own.settings},
            nodes=own.nodes if found["fleet"] else {**self.nodes, **own.nodes},
        )

    def build(self, clusters: Path | None) -> SimulatedFleet:
        """The fleet of this run. Raises ConfigurationError."""
        try:
            config = load_config(clusters)
        except NothingConfiguredError:  # the clusters with a size are the fleet
            names = [*(sized_names(self.sizes) if self.sizes is not None else ()), *self.nodes]
            if not names:
                raise
            config = load_config([{"name": name, "dashboard": _UNUSED_DASHBOARD} for name in dict.fromkeys(names)])
        changes = dict(self.settings)
        if self.weights is not None:
            changes["weights"] = self.weights
        if changes:
            settings = {**config.settings.model_dump(exclude_unset=True), **changes}
            changed = build_fleet(settings, config.clusters, source="--set", base_dir=config.base_dir)
            config = changed.model_copy(update={"source": config.source})
        return load_fleet(config, self.sizes, self.nodes)


def simulate_and_record(fleet: SimulatedFleet, workload: Workload, seed: int, path: Path) -> Result:
    """Simulate, and write the history as JSON lines."""
    results: list[Result] = []

    def run(path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            results.append(
                simulate(
                    fleet,
                    workload,
                    seed=seed,
                    observe=lambda line: print(json.dumps(to_dict(line), separators=(",", ":")), file=file),
                )
            )

    write_file(path, run)
    return results[0]


def _weights(texts: list[str]) -> dict[str, float] | None:
    if not texts:
        return None
    if ROUND_ROBIN in texts:
        if len(texts) > 1:
            raise ConfigurationError("round_robin cannot be combined with other scores.", next_step="give it alone")
        return {}
    weights = {}
    for text in texts:
        name, sign, weight = text.partition("=")
        try:
            weights[name] = float(weight) if sign else 1.0
        except ValueError:
            raise ConfigurationError(
                f"--policy {text}: {weight!r} is not a number.", next_step="write for example --policy headroom=0.5"
            ) from None
    return weights


def _pair(option: str, text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ConfigurationError(f"{option} {text!r} is not NAME=VALUE.", next_step=f"write {option} NAME=VALUE")
    return name.strip(), value
