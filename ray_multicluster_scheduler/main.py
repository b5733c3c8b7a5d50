"""main(): what `rmcs` and `python -m ray_multicluster_scheduler` run; errors become one message and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.cli.terminal.stderr_messages import to_stderr
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, UnknownItemError

COMPLETE = "_RMCS_COMPLETE"
"""Set by a shell that wants to know what can follow."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. A user's mistake never shows a traceback."""
    _have_streams()
    try:
        from ray_multicluster_scheduler.cli.app import app

        if COMPLETE in os.environ:
            from ray_multicluster_scheduler.cli.arguments.completion import as_one_word

            as_one_word(os.environ)
        app(args=None if arguments is None else list(arguments), prog_name="rmcs")
    except SchedulerError as error:
        _report(error)
        if isinstance(error, (UnknownItemError, exit_codes.NotThereError)):
            return exit_codes.NOT_FOUND
        return exit_codes.USAGE if isinstance(error, ConfigurationError) else exit_codes.NOT_DONE
    except OSError as error:
        if (wrong := _wrong_use(error)) is not None:
            return wrong
        if error.errno not in exit_codes.NO_ROOM:
            raise
        _give_up_output()
        _report(exit_codes.no_room(error.filename or "The output", error))
        return exit_codes.NOT_DONE
    except UnicodeEncodeError as error:
        if not any(map(_is_no_text, sys.argv if arguments is None else arguments)):
            raise
        _report(ConfigurationError(f"{error.object!r} is not UTF-8.", next_step="give ids and names as UTF-8"))
        return exit_codes.USAGE
    except KeyboardInterrupt:  # before Typer was there to hear it
        to_stderr("rmcs: interrupted.")
        return exit_codes.INTERRUPTED
    except SystemExit as stop:  # how Typer ends, whatever happened
        code = stop.code if isinstance(stop.code, int) else exit_codes.NOT_DONE if stop.code else 0
        if code == exit_codes.NOT_DONE and _nobody_reads():
            return exit_codes.NOBODY_READS
        if code == exit_codes.INTERRUPTED:
            to_stderr("rmcs: interrupted.")
        return code
    return 0


def _is_no_text(word: str) -> bool:
    """Were there bytes on the command line that are none? Python keeps them as halves of characters."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return True
    return False


def _have_streams() -> None:
    """Python has None for those that a shell has closed (``>&-``). Whoever did so wants to hear nothing; what is done,
    and the exit code that tells it, are the same."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end of the process


def _wrong_use(error: BaseException | None) -> int | None:
    """The exit code of a wrong command line, if this came of telling it to a stderr that takes nothing; else None."""
    while error is not None:
        if isinstance(code := getattr(error, "exit_code", None), int):
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end of the process
            return code
        error = error.__context__
    return None


def _nobody_reads() -> bool:
    """Did Typer end it because of a pipe that was closed? Its own copy of Click leaves a stream that swallows all."""
    return type(sys.stdout).__name__ == "PacifyFlushWrapper"


def _give_up_output() -> None:
    """What could not be written: else Python tries it again at its end, and complains."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _report(error: SchedulerError) -> None:
    from ray_multicluster_scheduler.cli.config_hints import next_step_of
    from ray_multicluster_scheduler.cli.troubleshooting import said_of
    from ray_multicluster_scheduler.common.control_characters import escaped_lines

    to_stderr(escaped_lines(f"rmcs: error: {error.message}"))
    if next_step := next_step_of(error):
        to_stderr(escaped_lines(f"What to do: {next_step}"))
    codes = [error.code, *(kind.code for kind in type(error).__mro__ if issubclass(kind, SchedulerError))]
    code = next((code for code in codes if said_of(code) is not None), None)
    if code not in (None, ConfigurationError.code):  # such a message says it all
        to_stderr(f"More: rmcs explain {code}")


if __name__ == "__main__":
    sys.exit(main())
