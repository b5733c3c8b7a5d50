"""`python -m ray_multicluster_scheduler.serving`: a serving scheduler alone, on this machine's loopback interface."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import uvicorn

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.serving.api import CONFIG_VARIABLE, app
from ray_multicluster_scheduler.serving.config import read_config

PORT = 8102


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ray_multicluster_scheduler.serving",
        description="Route inference requests to the instances of a model. Listens on 127.0.0.1 only.",
    )
    parser.add_argument("--config", help="a YAML file with instances and settings")
    parser.add_argument("--port", type=int, default=PORT, help="0 takes a free one (default: %(default)s)")
    options = parser.parse_args(arguments)
    if not 0 <= options.port <= 65535:
        parser.error(f"--port is {options.port}: give a port between 0 and 65535")
    if options.config:
        try:
            read_config(options.config)
        except SchedulerError as error:
            print(error, file=sys.stderr)
            return 2
        os.environ[CONFIG_VARIABLE] = options.config
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=options.port,
        access_log=False,
        log_level="info",
        lifespan="on",  # otherwise a failed start would leave a server that answers 500 to everything
        proxy_headers=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
