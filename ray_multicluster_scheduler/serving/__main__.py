"""`python -m ray_multicluster_scheduler.serving`: a serving scheduler alone, on this machine's loopback interface."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence

import uvicorn

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.logging import configure
from ray_multicluster_scheduler.serving.api import CONFIG_VARIABLE, MAX_BODY, STATE_VARIABLE, app
from ray_multicluster_scheduler.serving.config import read_config

PORT = 8102
_CLOSE_TIMEOUT_S = 2
"""For requests that run when the server is stopped."""
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ray_multicluster_scheduler.serving",
        description="Route inference requests to the instances of a model. Listens on 127.0.0.1 only: "
        "for callers on other machines use `rmcs up`, which has tokens and roles.",
    )
    parser.add_argument("--config", help="a YAML file with instances and settings")
    parser.add_argument("--state", metavar="FOLDER", help="keep tasks, results and instances here, not only in memory")
    parser.add_argument("--port", type=int, default=PORT, help="0 takes a free one (default: %(default)s)")
    options = parser.parse_args(arguments)
    if not 0 <= options.port <= 65535:
        parser.error(f"--port is {options.port}: give a port between 0 and 65535")
    if options.config:
        os.environ[CONFIG_VARIABLE] = options.config
    if options.state:
        os.environ[STATE_VARIABLE] = options.state
    try:
        if options.config:
            read_config(options.config)
        socket.create_server(("127.0.0.1", options.port)).close()
    except SchedulerError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        sentence = f"127.0.0.1:{options.port} cannot be used: {os.strerror(error.errno or 0)}."
        print(f"{sentence} What to do: stop what listens there, or give another --port", file=sys.stderr)
        return 2
    configure()
    settings = uvicorn.Config(
        app,
        port=options.port,
        access_log=False,
        ws_max_size=MAX_BODY,
        lifespan="on",  # otherwise a failed start would leave a server that answers 500 to everything
        proxy_headers=False,
        timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
    )
    try:
        uvicorn.Server(settings).run()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemExit:  # it could not start; the reason was logged
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
