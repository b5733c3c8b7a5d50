"""main(): what `rmcs` and `python -m ray_multicluster_scheduler` run; errors become one message and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, UnknownItemError

COMPLETE = "_RMCS_COMPLETE"
"""Set by a shell that wants to know what can follow."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. A user's mistake never shows a traceback."""
    try:
        from ray_multicluster_scheduler.cli.app import app

        if COMPLETE in os.environ:
            from ray_multicluster_scheduler.cli.completion import as_one_word

            as_one_word(os.environ)
        app(args=None if arguments is None else list(arguments), prog_name="rmcs")
    except SchedulerError as error:
        _report(error)
        if isinstance(error, (UnknownItemError, exit_codes.NotThereError)):
            return exit_codes.NOT_FOUND
        return exit_codes.USAGE if isinstance(error, ConfigurationError) else exit_codes.NOT_DONE
    except KeyboardInterrupt:  # before Typer was there to hear it
        print("rmcs: interrupted.", file=sys.stderr)
        return exit_codes.INTERRUPTED
    except SystemExit as stop:  # how Typer ends, whatever happened
        code = stop.code if isinstance(stop.code, int) else exit_codes.NOT_DONE if stop.code else 0
        if code == exit_codes.INTERRUPTED:
            print("rmcs: interrupted.", file=sys.stderr)
        return code
    return 0


def _report(error: SchedulerError) -> None:
    from ray_multicluster_scheduler.cli.troubleshooting import said_of
    from ray_multicluster_scheduler.common.line_text import escaped_lines

    print(escaped_lines(f"rmcs: error: {error.message}"), file=sys.stderr)
    if error.next_step:
        print(escaped_lines(f"What to do: {error.next_step}"), file=sys.stderr)
    codes = [error.code, *(kind.code for kind in type(error).__mro__ if issubclass(kind, SchedulerError))]
    code = next((code for code in codes if said_of(code) is not None), None)
    if code not in (None, ConfigurationError.code):  # such a message says it all
        print(f"More: rmcs explain {code}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
