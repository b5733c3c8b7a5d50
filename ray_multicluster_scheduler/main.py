"""main(): what `rmcs` and `python -m ray_multicluster_scheduler` run; errors become one message and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.layout.output import to_stderr
from ray_multicluster_scheduler.common.exception import ADVICE, ConfigurationError, SchedulerError, UnknownItemError

COMPLETE = "_RMCS_COMPLETE"
"""Set by a shell that asks for completions."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. A user's mistake never shows a traceback."""
    _open_missing_streams()
    try:
        from ray_multicluster_scheduler.cli.app import app

        if COMPLETE in os.environ:
            from ray_multicluster_scheduler.cli.arguments.completion import join_split_options

            join_split_options(os.environ)
        app(args=None if arguments is None else list(arguments), prog_name="rmcs")
    except SchedulerError as error:
        _report(error)
        if isinstance(error, (UnknownItemError, exit_codes.NotFoundError)):
            return exit_codes.NOT_FOUND
        return exit_codes.USAGE if isinstance(error, ConfigurationError) else exit_codes.NOT_DONE
    except OSError as error:
        if (code := _usage_exit_code(error)) is not None:
            return code
        if error.errno not in exit_codes.DISK_ERRORS:
            raise
        _discard_output()
        _report(exit_codes.disk_error(error.filename or "The output", error))
        return exit_codes.NOT_DONE
    except UnicodeEncodeError as error:
        if not any(map(_is_not_utf8, sys.argv if arguments is None else arguments)):
            raise
        _report(ConfigurationError(f"{error.object!r} is not UTF-8.", next_step="give ids and names as UTF-8"))
        return exit_codes.USAGE
    except KeyboardInterrupt:  # before Typer handles it
        to_stderr("rmcs: interrupted.")
        return exit_codes.INTERRUPTED
    except SystemExit as stop:  # Typer always ends so
        return _exit_code(stop)
    return 0


def _exit_code(stop: SystemExit) -> int:
    code = stop.code if isinstance(stop.code, int) else exit_codes.NOT_DONE if stop.code else 0
    if code == exit_codes.NOT_DONE and _pipe_closed():
        return exit_codes.BROKEN_PIPE
    if code == exit_codes.INTERRUPTED:
        to_stderr("rmcs: interrupted.")
    return code


def _is_not_utf8(word: str) -> bool:
    """Python keeps bytes of the command line that are not UTF-8 as surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return True
    return False


def _open_missing_streams() -> None:
    """Python sets streams that a shell has closed (``>&-``) to None; open the null device instead."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end of the process


def _usage_exit_code(error: BaseException | None) -> int | None:
    """The exit code of a usage error whose message could not be written to stderr; None: it is another error."""
    while error is not None:
        if isinstance(code := getattr(error, "exit_code", None), int):
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end of the process
            return code
        error = error.__context__
    return None


def _pipe_closed() -> bool:
    """Did Typer end because stdout was closed? Its copy of Click then replaces the stream."""
    return type(sys.stdout).__name__ == "PacifyFlushWrapper"


def _discard_output() -> None:
    """Drop what could not be written: Python would retry it at exit, and print an error."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _report(error: SchedulerError) -> None:
    from ray_multicluster_scheduler.cli.troubleshooting import next_step_of, section_of
    from ray_multicluster_scheduler.common.control_characters import escaped_lines

    to_stderr(escaped_lines(f"rmcs: error: {error.message}"))
    if (next_step := next_step_of(error)) and ADVICE not in error.message:
        to_stderr(escaped_lines(f"{ADVICE}{next_step}"))
    codes = [error.code, *(kind.code for kind in type(error).__mro__ if issubclass(kind, SchedulerError))]
    code = next((code for code in codes if section_of(code) is not None), None)
    if code not in (None, ConfigurationError.code):  # the message is enough
        to_stderr(f"More: rmcs explain {code}")


if __name__ == "__main__":
    sys.exit(main())
