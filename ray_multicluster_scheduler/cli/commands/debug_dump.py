"""`rmcs debug-dump`: write an archive for a bug report, with secrets masked."""

from __future__ import annotations

import io
import tarfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ray_multicluster_scheduler.cli.arguments.options import ReplaceFiles
from ray_multicluster_scheduler.cli.debug import local_files
from ray_multicluster_scheduler.cli.debug.secret_masking import LEFT_OUT, DumpMasker, local_secrets
from ray_multicluster_scheduler.cli.layout.output import Format, Output, as_text, emit, notify
from ray_multicluster_scheduler.cli.output_files import check_new, write_file
from ray_multicluster_scheduler.cli.service.client import Address, Service, connect, find_address
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, ServiceUnavailableError

_ANSWER_S = 30.0
_README = """\
Collected by `rmcs debug-dump` at {at}, for a bug report.

Secrets are left out or shown as •••: tokens, values with a secret's name, passwords in addresses. Code, arguments,
values and output of your work are not in it. It contains names of owners, items, clusters and packages, addresses,
paths, entrypoints of jobs, error messages, and the log. Review it before you share it.

{files}
{left_out}"""


def debug_dump(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE.tar.gz", help="What to write; default: rmcs-debug-TIME.tar.gz in this folder."),
    ] = None,
    force: ReplaceFiles = False,
    output: Output = Format.table,
    address: Address = None,
) -> None:
    """Write an archive for a bug report, without secrets.

    Versions, settings, clusters, queue, items, events and metrics of a service, and facts about this machine; without a
    service only those.
    """
    name = time.strftime("rmcs-debug-%Y%m%d-%H%M%S", time.gmtime())
    out = Path(f"{name}.tar.gz") if file is None else file
    check_new(out, force=force)
    dump = _collect(address)
    packed = _packed(name, dump)
    write_file(out, lambda draft: draft.write_bytes(packed), private=True)
    for part, why in dump.left_out.items():
        notify(f"left out: {part}: {why}")
    notify("review it before you share it: it contains names, addresses and paths")
    summary = {"file": str(out), "bytes": out.stat().st_size, "parts": sorted(dump.texts), "left_out": dump.left_out}
    emit(summary, output, lambda: str(out))


class _Dump:
    """The files by name, a description of each, and what could not be collected."""

    def __init__(self, masker: DumpMasker) -> None:
        self._masker = masker
        self.texts: dict[str, str] = {}
        self.about: dict[str, str] = {}
        self.left_out: dict[str, str] = {}

    def add(self, name: str, about: str, value: Any) -> None:
        """Add data or text, masked; it is left out if the final check finds a secret."""
        if isinstance(value, str):
            text = self._masker.mask_lines(value)
        else:
            text = as_text(self._masker.mask_data(value), Format.json) + "\n"
        if not self._masker.is_clean(text):
            self.leave_out(name, LEFT_OUT)
            return
        self.texts[name], self.about[name] = text, about

    def leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = self._masker.mask_text(why.strip().partition("\n")[0])

    def readme(self) -> str:
        files = "".join(f"{name:24}  {about}\n" for name, about in self.about.items())
        missing = "".join(f"{name:24}  {why}\n" for name, why in self.left_out.items())
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        return self._masker.mask_lines(
            _README.format(at=at, files=files, left_out=f"Left out:\n\n{missing}" if missing else "")
        )


def _collect(address: str | None) -> _Dump:
    from ray_multicluster_scheduler.control_plane.admin_api.access.config_redaction import config_shown
    from ray_multicluster_scheduler.control_plane.config import load_config
    from ray_multicluster_scheduler.control_plane.config.home import rmcs_home

    home = rmcs_home()
    config, problem = None, ""
    try:  # the one that the library would use here
        config = load_config(None)
    except ConfigurationError as error:
        problem = error.message
    service = connect(address, answer_s=_ANSWER_S) if find_address(address) is not None else None
    token = [] if service is None else [service.token]
    dump = _Dump(DumpMasker([*local_secrets(home, config), *token]))
    dump.add("versions.json", "of rmcs, Python, the system and all packages", local_files.versions())
    dump.add("machine.json", "CPUs, free disk space, which of our variables are set", local_files.machine(home))
    dump.add("home-folder.txt", f"modes and sizes of the files in {home}", local_files.listing(home))
    if config is None:
        dump.leave_out("config.json", problem)
    else:
        dump.add("config.json", "the configuration that the library finds here", config_shown(config))
    if service is None:
        dump.leave_out("service/", "no service runs here; give its --address if there is one")
    else:
        _collect_from(service, dump, home)
    return dump


def _collect_from(service: Service, dump: _Dump, home: Path) -> None:
    from ray_multicluster_scheduler.cli.debug.service_files import service_files

    gone = ""
    for name, about, ask in service_files():
        try:
            if gone:
                dump.leave_out(name, gone)
            else:
                dump.add(name, about, ask(service))
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
            info = tarfile.TarInfo(f"{name}/{path}")
            info.size, info.mode, info.mtime = len(data), 0o600, int(time.time())
            tar.addfile(info, io.BytesIO(data))
    return archive.getvalue()
