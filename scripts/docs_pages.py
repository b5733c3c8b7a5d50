"""A MkDocs hook that generates the reference pages of docs/ from the code, so that they cannot disagree with it.

commands.md comes from the commands, configuration.md from the models and their docstrings, items.md from the
definitions of an item's fields, rest.md from the OpenAPI document, python.md from the exports of the package.
troubleshooting.md is part of the package, because `rmcs explain CODE` reads it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
import typer.cli
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import ray_multicluster_scheduler as package
from ray_multicluster_scheduler.cli.app import app as commands
from ray_multicluster_scheduler.cli.arguments.examples import TITLE as EXAMPLES
from ray_multicluster_scheduler.cli.arguments.lazy_group import LazyGroup, load_all
from ray_multicluster_scheduler.common.model import (
    ActorDescription,
    GangDescription,
    JobDescription,
    MemberDescription,
    TaskDescription,
)
from ray_multicluster_scheduler.common.model.item_fields import KINDS, ItemField, fields_of
from ray_multicluster_scheduler.common.model.submit_options import options_of
from ray_multicluster_scheduler.control_plane.admin_api.http.app import ROUTERS
from ray_multicluster_scheduler.control_plane.admin_api.schemas.document import DocumentedApp
from ray_multicluster_scheduler.control_plane.config import cluster_config, pool_config, settings

CONFIG = "ray_multicluster_scheduler.control_plane.config"
TROUBLESHOOTING = Path(package.__file__).parent / "cli" / "troubleshooting.md"

_ABOUT_CONFIGURATION = """\
`clusters.yaml` has three parts: `settings` (all optional), `clusters` (a list) and `pools` (an optional list). Unknown
keys are refused. Each setting is also an environment variable, `RMCS_<NAME>`; mappings and lists are given as JSON
there."""

_ABOUT_ITEMS = """\
The keyword arguments of `submit_task`, `submit_actor`, `submit_job` and `submit_gang`, and the fields of an item in
`POST /api/v1/items`, which are the same as JSON. Unknown names are refused."""
_PARTS_OF_ITEMS = {
    "job": JobDescription,
    "actor": ActorDescription,
    "gang": GangDescription,
    "a member of a gang": MemberDescription,
}

GROUPS = {
    "Submit": r"submit_\w+|member|GangMember|remote|method|put|deploy",
    "Wait and control": (
        r"get|wait\w*|as_completed|cancel|kill|hold|release|set_priority|stop_job|get_job_\w+|list_jobs"
    ),
    "Show": (
        r"explain|plan|events|on_event|current|list_\w+|get_actor|nodes|cluster_info|\w+_resources|get_runtime_\w+"
        r"|get_gpu_ids"
    ),
    "Clusters and queues": r"cordon|uncordon|drain|declare_dead|pause_queue|resume_queue|register_policy|Rejection",
    "A scheduler": r"\w+Scheduler|get_unified_scheduler|init\w*|is_initialized|shutdown|graceful_\w+",
    "Handles": r"\w+Handle|Deployment|ObjectRef|TaskState|FleetExecutor|ActorPool|ClusterContextManager",
    "Configuration": r"FleetConfig|ClusterConfig|Settings|LocalFleet|LocalCluster",
    "Errors": r"\w+Error|RemoteTraceback",
    "More": r".*",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs with the files of docs/: replaces the placeholder of each generated page.

    The placeholders make links work where the site is not built.
    """
    for path, text in pages():
        stands_in = files.get_file_from_path(path)
        if stands_in is not None:
            files.remove(stands_in)
        files.append(File.generated(config, path, content=text))
    return files


def pages() -> Iterator[tuple[str, str]]:
    yield "reference/commands.md", commands_page()
    yield "reference/configuration.md", configuration_page()
    yield "reference/items.md", items_page()
    yield "reference/rest.md", rest_page()
    yield "reference/python.md", python_page()
    yield "troubleshooting.md", TROUBLESHOOTING.read_text(encoding="utf-8").replace("](../../docs/", "](")


# ---- commands


def commands_page() -> str:
    group = typer.main.get_group(commands)
    assert isinstance(group, LazyGroup)
    root = load_all(group)
    context = typer.Context(root, info_name="rmcs")
    _show_full_help(root)
    text = typer.cli.get_docs_for_click(obj=root, ctx=context, name="rmcs", title="Commands")
    return re.sub(rf"\x08\n{EXAMPLES}\n((?:  .*\n)+)", _as_code, text)


def _show_full_help(command: Any) -> None:
    """Show the full first sentence of each command in command lists as well."""
    command.short_help = command.get_short_help_str(1000)
    for below in getattr(command, "commands", {}).values():
        _show_full_help(below)


def _as_code(found: re.Match[str]) -> str:
    return f"**Examples**:\n\n```sh\n{textwrap.dedent(found[1])}```\n"


# ---- configuration


def configuration_page() -> str:
    """Every key of clusters.yaml: its type, its default, its effect."""
    parts = [
        "# Configuration",
        _ABOUT_CONFIGURATION,
        "## settings",
        _table(settings.Settings, "settings"),
        *_with_heading(
            settings,
            settings.Threshold,
            settings.RetryBackoff,
            settings.OwnerLimits,
            settings.Preemption,
            settings.ServiceTls,
            settings.Serving,
            settings.Tracing,
        ),
        "## clusters",
        "At least one of `head_address` and `dashboard` is needed; a cluster with only the former takes no jobs.",
        _table(cluster_config.ClusterConfig, "cluster_config"),
        *_with_heading(cluster_config, cluster_config.Tls),
        "## pools",
        f"{pool_config.PoolConfig.__doc__} [Pools](../concepts/pools.md) explains them.",
        _table(pool_config.PoolConfig, "pool_config"),
    ]
    return "\n\n".join(parts) + "\n"


def _with_heading(module: Any, *models: type[BaseModel]) -> Iterator[str]:
    where = module.__name__.rsplit(".", 1)[1]
    for model in models:
        yield f"### {model.__name__}"
        yield _plain(model.__doc__ or "")
        yield _table(model, where)


def _table(model: type[BaseModel], module: str) -> str:
    members = griffe.load(f"{CONFIG}.{module}")[model.__name__].members
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        docstring = members[name].docstring
        words = docstring.value if docstring else field.description or ""
        cells = (f"`{name}`", _type(field), _default(field), _plain(words))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _type(field: FieldInfo) -> str:
    text = str(field.annotation) if not isinstance(field.annotation, type) else field.annotation.__name__
    text = re.sub(r"Annotated\[([\w.]+), \w+\((?:[^()]|\([^()]*\))*\)\]", r"\1", text)
    text = re.sub(r"typing\.|pydantic\.\w+\.|ray_multicluster_scheduler(\.\w+)*\.", "", text)
    literal = re.findall(r"'([^']*)'", text)
    if "Literal[" in text and literal:
        return ("several of: " if "set[" in text else "") + ", ".join(f"`{word}`" for word in literal)
    return f"`{text}`"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, frozenset):
        value = sorted(value)
    return f"`{value:g}`" if isinstance(value, float) and value < 1e6 else f"`{value}`"


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("``", "`")).strip()


# ---- items


def items_page() -> str:
    """Every option of the submit verbs, and every field of an item in REST."""
    parts = ["# Options and fields of items", _ABOUT_ITEMS, "## Options", _options_table(), "## Fields in REST"]
    for name, description in (("task", TaskDescription), *_PARTS_OF_ITEMS.items()):
        rows = ["| field | takes | default | |", "|---|---|---|---|"]
        for field in fields_of(description).values():
            default = "required" if field.required and field.name != "id" else _default_of(field)
            rows.append(_row(f"`{field.name}`", field.words, default, field.spec.doc))
        parts += [f"### {name}", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def _options_table() -> str:
    rows = ["| option | of | default | |", "|---|---|---|---|"]
    for keyword in dict.fromkeys(word for kind in KINDS for word in options_of(kind)):
        kinds = [kind for kind in KINDS if keyword in options_of(kind)]
        field = options_of(kinds[0])[keyword]
        of = "all" if len(kinds) == len(KINDS) else ", ".join(kinds)
        default = f"the setting `{field.name}`" if field.spec.setting else _default_of(field)
        rows.append(_row(f"`{keyword}`", of, default, field.spec.doc))
    return "\n".join(rows)


def _default_of(field: ItemField) -> str:
    return "" if field.required or field.default in (None, "", (), {}) else f"`{field.default}`"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# ---- REST


def rest_page() -> str:
    """Every route, who may use it, and what it takes."""
    app = DocumentedApp(title=package.__name__, version=package.__version__)
    for router in ROUTERS:
        app.include_router(router)
    document = app.openapi()
    parts = ["# REST", document["info"]["description"], "[The API by example](../api.md) shows how it is used."]
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            parts += [f"## {method.upper()} {path}", *_route(route)]
    return "\n\n".join(parts) + "\n"


def _route(route: dict[str, Any]) -> Iterator[str]:
    yield f"Rule: `{route.get('x-rule', 'open')}`."
    yield str(route["description"])  # its first sentence is the summary
    parameters = [
        f"| `{one['name']}` | {one['in']} | {_plain(one.get('description', '')).replace('|', chr(92) + '|')} |"
        for one in route.get("parameters", ())
    ]
    if parameters:
        yield "\n".join(["| parameter | in | |", "|---|---|---|", *parameters])
    yield "Answers: " + ", ".join(f"`{status}`" for status in route.get("responses", {})) + "."


# ---- Python


def python_page() -> str:
    """All exports of the package, by topic."""
    left = [name for name in package.__all__ if not name.startswith("__")]
    parts = ["# Python", "`import ray_multicluster_scheduler` gives the whole public API; other modules are internal."]
    for title, pattern in GROUPS.items():
        chosen = [name for name in left if re.fullmatch(pattern, name)]
        left = [name for name in left if name not in chosen]
        if chosen:
            parts.append(f"## {title}")
            parts += [f"::: {package.__name__}.{name}" for name in chosen]
    return "\n\n".join(parts) + "\n"
