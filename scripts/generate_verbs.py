"""Write the verbs of the package, and those of AsyncScheduler, from the methods of UnifiedScheduler.

`python scripts/generate_verbs.py` writes ``verbs.py`` and ``async_verbs.py`` in ``app/client_api``; a test fails when
they are not what this script makes. Each verb is one line that calls the method of the same name, under the method's
own signature, decorators and docstring. Those of AsyncScheduler have no decorators: earlier versions had no such class.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "ray_multicluster_scheduler" / "app" / "client_api"
SOURCES = ("scheduler.py", "job_verbs.py", "queue_verbs.py")
"""Where the methods are defined."""


def names(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


VERBS = names(
    "submit_task submit_task_async put submit_job submit_job_async get_job_status get_job_info get_job_logs stop_job "
    "list_jobs wait_for_all_jobs submit_actor submit_actor_async get_actor list_actors submit_gang submit_gang_async "
    "deploy explain plan events on_event hold release set_priority pause_queue resume_queue owner_limits "
    "set_owner_limits reset_owner_limits cordon uncordon drain declare_dead list_clusters cluster_info fleet_resources"
)
"""Functions of the package, without `get`, `wait`, `cancel` and `kill`, which need no scheduler."""

SHORT = names(
    "submit_task_async put submit_job_async submit_actor_async submit_gang_async cancel explain plan handle unfinished "
    "hold release set_priority get_actor kill list_actors pause_queue resume_queue owner_limits set_owner_limits "
    "reset_owner_limits cordon uncordon declare_dead list_clusters cluster_info fleet_resources nodes use_runtime_env "
    "on_event get_job_status get_job_info job_info job_logs stop_job list_jobs"
)
"""Coroutines that run in the shared thread pool."""

LONG = names("submit_job submit_actor submit_gang deploy drain wait_for_a_job")
"""Coroutines that may block for long: each call gets its own thread."""

VERBS_HEAD = '''"""The verbs of the package: each calls the method of the same name of the active scheduler.

That is the program's shared UnifiedScheduler, or inside a cluster the NativeScheduler. Generated from UnifiedScheduler
by scripts/generate_verbs.py: do not edit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray_multicluster_scheduler.app.client_api.argument_names import also_named
from ray_multicluster_scheduler.app.client_api.execution_context import active_scheduler

if TYPE_CHECKING:
'''
ASYNC_HEAD = '''"""AsyncVerbs: the verbs of AsyncScheduler that call the method of the same name in a thread.

Generated from UnifiedScheduler by scripts/generate_verbs.py: do not edit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray_multicluster_scheduler.app.client_api.blocking_call_threads import BlockingCallThreads

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler
'''
ASYNC_CLASS = '''class AsyncVerbs:
    """Every method is a coroutine with the arguments, the result and the errors of the method of UnifiedScheduler."""

    _scheduler: UnifiedScheduler
    _threads: BlockingCallThreads

'''


class Methods:
    """The methods of UnifiedScheduler, with what their signatures need."""

    def __init__(self) -> None:
        self._defined: dict[str, list[ast.FunctionDef]] = {}
        self._imports: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        for source in SOURCES:
            for node in ast.parse((CLIENT / source).read_text()).body:
                if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                    for one in node.names:
                        alias = f" as {one.asname}" if one.asname else ""
                        self._imports[one.asname or one.name] = f"from {node.module} import {one.name}{alias}"
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                    self._aliases[node.target.id] = ast.unparse(node.value)
                elif isinstance(node, ast.ClassDef) and node.name in {"UnifiedScheduler", "JobVerbs", "QueueVerbs"}:
                    for part in node.body:
                        if isinstance(part, ast.FunctionDef):
                            self._defined.setdefault(part.name, []).append(part)

    def named(self, name: str) -> list[ast.FunctionDef]:
        """Its overloads, then the method itself."""
        methods = self._defined[name]
        last = next(one for one in reversed(methods) if ast.get_docstring(one))
        return [*(one for one in methods if one.decorator_list and _is_overload(one)), last]

    def imports_for(self, text: str, head: str) -> str:
        """Imports of the names that are in the text and not in the head, and definitions of aliases."""
        used = set(re.findall(r"[A-Za-z_]\w*", re.sub(r'"""(?s:.*?)"""', "", text)))
        alias_text = " ".join(self._aliases[one] for one in sorted(used & set(self._aliases)))
        used |= {*re.findall(r"[A-Za-z_]\w*", alias_text), *({"TypeAlias"} if alias_text else ())}
        lines = [
            f"    {self._imports[one]}"
            for one in sorted((used & set(self._imports)) - set(self._aliases))
            if f"import {one}\n" not in head
        ]
        lines += [f"\n    {one}: TypeAlias = {self._aliases[one]}" for one in sorted(used & set(self._aliases))]
        return "\n".join(lines) + "\n"


def _is_overload(method: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "overload" for one in method.decorator_list)


def _call(method: ast.FunctionDef) -> str:
    """The arguments with which a verb calls its method."""
    arguments = method.args
    parts = [one.arg for one in arguments.args if one.arg != "self"]
    parts += [f"{one.arg}={one.arg}" for one in arguments.kwonlyargs]
    if arguments.kwarg:
        parts.append(f"**{arguments.kwarg.arg}")
    return ", ".join(parts)


def _signature(method: ast.FunctionDef, *, with_self: bool) -> str:
    text = ast.unparse(method.args)
    if not with_self:
        text = text.removeprefix("self").removeprefix(", ")
    return f"({text}) -> {ast.unparse(method.returns) if method.returns else 'None'}"


def _docstring(method: ast.FunctionDef, indent: str, *, summary: bool = False) -> str:
    """Its docstring, or only the first paragraph as a ``summary``."""
    text = re.sub(r":(?:meth|class):`(?:UnifiedScheduler\.)?(\w+)`", r"`\1`", ast.get_docstring(method) or "")
    if summary:
        text = text.partition("\n\n")[0]
    return f'"""{text}{chr(10) if chr(10) * 2 in text else ""}"""'.replace("\n", f"\n{indent}").replace(
        f"\n{indent}\n", "\n\n"
    )


def _returns(method: ast.FunctionDef) -> str:
    return "" if method.returns is None or ast.unparse(method.returns) == "None" else "return "


def verbs_text(methods: Methods) -> str:
    """The module of functions."""
    parts = []
    for name in VERBS:
        *overloads, method = methods.named(name)
        parts += [f"@overload\ndef {name}{_signature(one, with_self=False)}: ..." for one in overloads]
        body = f"{_returns(method)}active_scheduler().{name}({_call(method)})"
        if overloads:  # only the caller knows which one applies
            body = (
                f"call: Callable[..., {ast.unparse(method.returns or ast.Constant(None))}] = active_scheduler().{name}"
            )
            body += f"\n    return call({_call(method)})"
        decorators = "".join(f"@{ast.unparse(one)}\n" for one in method.decorator_list)
        signature = f"{decorators}def {name}{_signature(method, with_self=False)}"
        parts.append(f"{signature}:\n    {_docstring(method, '    ')}\n    {body}")
    text = "\n\n\n".join(parts) + "\n"
    head = VERBS_HEAD.replace("import TYPE_CHECKING\n", "import TYPE_CHECKING, overload\n")
    return head + methods.imports_for(text.replace("@overload", ""), head) + "\n\n" + text


def async_text(methods: Methods) -> str:
    """The module of the class AsyncVerbs."""
    parts = []
    for name, run in sorted([*((one, "call") for one in SHORT), *((one, "run_on_own_thread") for one in LONG)]):
        *overloads, method = methods.named(name)
        parts += [f"    @overload\n    async def {name}{_signature(one, with_self=True)}: ..." for one in overloads]
        call = ", ".join(filter(None, (f"self._scheduler.{name}", _call(method))))
        body = f"{_returns(method)}await self._threads.{run}({call})"
        if overloads:  # only the caller knows which one applies
            body = f"method: Callable[..., Any] = self._scheduler.{name}\n"
            body += f"        return await self._threads.{run}(method, {_call(method)})"
        doc = _docstring(method, "        ", summary=True)
        parts.append(f"    async def {name}{_signature(method, with_self=True)}:\n        {doc}\n        {body}")
    text = ASYNC_CLASS + "\n\n".join(parts) + "\n"
    head = ASYNC_HEAD.replace("import TYPE_CHECKING\n", "import TYPE_CHECKING, overload\n")
    return head + methods.imports_for(text.replace("@overload", ""), head) + "\n\n" + text


def generated() -> dict[Path, str]:
    """Path and formatted text of each generated module."""
    methods = Methods()
    texts = {CLIENT / "verbs.py": verbs_text(methods), CLIENT / "async_verbs.py": async_text(methods)}
    return {path: _formatted(path, text) for path, text in texts.items()}


def _formatted(path: Path, text: str) -> str:
    """As `make format` writes it."""
    ruff = [str(Path(sys.executable).with_name("ruff"))]
    for command in (["check", "--fix", "--quiet", "--select", "I,F401"], ["format", "--quiet"]):
        run = subprocess.run(
            [*ruff, *command, "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = run.stdout
    return text


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
        print(path.relative_to(CLIENT.parents[2]))
