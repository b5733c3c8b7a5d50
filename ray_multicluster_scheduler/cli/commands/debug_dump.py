"""`rmcs debug-dump`: one archive with what a bug report needs, and no secrets."""

from __future__ import annotations

import io
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ray_multicluster_scheduler.cli.debug import local_files
from ray_multicluster_scheduler.cli.debug.secret_masking import LEFT_OUT, Cover, secrets_here
from ray_multicluster_scheduler.cli.layout.output import Format, Output, as_text, emit, say
from ray_multicluster_scheduler.cli.service.client import Address, Service, connect, find
from ray_multicluster_scheduler.cli.terminal.output_files import check_new, write_whole

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.config import FleetConfig

_ANSWER_S = 30.0
_README = """\
What `rmcs debug-dump` gathered at {at}, for a bug report.

Secrets are left out or shown as •••: tokens, what is called like a secret, passwords in addresses. Code, arguments,
values and output of your work are not in it. What is in it: names of owners, items, clusters and packages, addresses,
paths, entrypoints of jobs, messages of errors, and the log. Look through it before you give it to others.

{files}
{left_out}"""


def debug_dump(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE.tar.gz", help="What to write; default: rmcs-debug-TIME.tar.gz in this folder."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Write an archive for a bug report, without secrets.

    Versions, settings, clusters, the queue, items, events and figures of a service, and what can be said of this
    machine; without a service only that.
    """
    name = time.strftime("rmcs-debug-%Y%m%d-%H%M%S", time.gmtime())
    out = Path(f"{name}.tar.gz") if file is None else file
    check_new(out, force=force)
    dump = _gathered(address)
    packed = _packed(name, dump)
    write_whole(out, lambda draft: draft.write_bytes(packed), private=True)
    for part, why in dump.left_out.items():
        say(f"left out: {part}: {why}")
    say("look through it before you give it to others: names, addresses and paths are in it")
    told = {"file": str(out), "bytes": out.stat().st_size, "parts": sorted(dump.texts), "left_out": dump.left_out}
    emit(told, output, lambda: str(out))


class _Dump:
    """Files by their names; what each tells; and what could not be had."""

    def __init__(self, cover: Cover) -> None:
        self._cover = cover
        self.texts: dict[str, str] = {}
        self.tells: dict[str, str] = {}
        self.left_out: dict[str, str] = {}

    def add(self, name: str, tells: str, value: Any) -> None:
        """Data or text, covered; what does not pass the last look is left out."""
        if isinstance(value, str):
            text = self._cover.lines(value)
        else:
            text = as_text(self._cover.data(value), Format.json) + "\n"
        if not self._cover.passes(text):
            self.leave_out(name, LEFT_OUT)
            return
        self.texts[name], self.tells[name] = text, tells

    def leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = self._cover.text(why.strip().partition("\n")[0])

    def readme(self) -> str:
        files = "".join(f"{name:24}  {tells}\n" for name, tells in self.tells.items())
        missing = "".join(f"{name:24}  {why}\n" for name, why in self.left_out.items())
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        return self._cover.lines(
            _README.format(at=at, files=files, left_out=f"Left out:\n\n{missing}" if missing else "")
        )


def _gathered(address: str | None) -> _Dump:
    from ray_multicluster_scheduler.control_plane.admin_api.access.config_redaction import config_shown
    from ray_multicluster_scheduler.control_plane.config.home import rmcs_home

    home = rmcs_home()
    config, wrong = _config()
    service = connect(address, answer_s=_ANSWER_S) if find(address) is not None else None
    token = [] if service is None else [service.token]
    dump = _Dump(Cover([*secrets_here(home, config), *token]))
    dump.add("versions.json", "of rmcs, Python, the system and all packages", local_files.versions())
    dump.add("machine.json", "CPUs, room on disks, which of our variables are set", local_files.machine(home))
    dump.add("home-folder.txt", f"modes and sizes of what is in {home}", local_files.listing(home))
    if config is None:
        dump.leave_out("config.json", wrong)
    else:
        dump.add("config.json", "the configuration that is found from here", config_shown(config))
    if service is None:
        dump.leave_out("service/", "no service runs here; give its --address if there is one")
    else:
        _ask(service, dump, home)
    return dump


def _config() -> tuple[FleetConfig | None, str]:
    """The one that the library would use here, or why there is none."""
    from ray_multicluster_scheduler.common.exception import ConfigurationError
    from ray_multicluster_scheduler.control_plane.config import load_config

    try:
        return load_config(None), ""
    except ConfigurationError as error:
        return None, error.message


def _ask(service: Service, dump: _Dump, home: Path) -> None:
    from ray_multicluster_scheduler.cli.debug.service_files import parts
    from ray_multicluster_scheduler.common.exception import SchedulerError, ServiceUnavailableError

    gone = ""
    for name, tells, ask in parts():
        try:
            if gone:
                dump.leave_out(name, gone)
            else:
                dump.add(name, tells, ask(service))
        except (SchedulerError, OSError, LookupError) as error:
            dump.leave_out(name, str(error) or type(error).__name__)
            if isinstance(error, ServiceUnavailableError) and name != "service/ready.txt":
                gone = str(error)
    try:
        dump.add("service/log.txt", "the end of its log", local_files.tail_of_log(home, service.address))
    except OSError as error:
        dump.leave_out("service/log.txt", str(error))


def _packed(name: str, dump: _Dump) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for path, text in {"README.txt": dump.readme(), **dump.texts}.items():
            data = text.encode("utf-8", "backslashreplace")
            about = tarfile.TarInfo(f"{name}/{path}")
            about.size, about.mode, about.mtime = len(data), 0o600, int(time.time())
            tar.addfile(about, io.BytesIO(data))
    return archive.getvalue()
