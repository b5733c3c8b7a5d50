"""`python -m ray_multicluster_scheduler.serving`: a serving scheduler alone, on this machine's loopback interface."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import uvicorn

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.serving.api import CONFIG_VARIABLE, STATE_VARIABLE, app
from ray_multicluster_scheduler.serving.config import read_config

PORT = 8102


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ray_multicluster_scheduler.serving",
        description="Route inference requests to the instances of a model. Listens on 127.0.0.1 only.",
    )
    parser.add_argument("--config", help="a YAML file with instances and settings")
    parser.add_argument("--state", metavar="FOLDER", help="keep tasks, results and instances here, not only in memory")
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
    if options.state:
        os.environ[STATE_VARIABLE] = options.state
    uvicorn.run(app, host="127.0.0.1", port=options.port, access_log=False, log_level="info")
    return 0


if __name__ == "__main__":
    sys.exit(main())
