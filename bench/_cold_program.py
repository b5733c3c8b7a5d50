"""The program of ``bench.cold_start``: imports our package, runs one task, and prints when each step happened.

Run as `python -P _cold_program.py CONFIG`. All times are those of ``time.time()`` on this machine. The task inspects
the processes of the cluster, so that every version of our package can be measured.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def observed() -> dict[str, Any]:
    """Runs in the cluster: when it ran, and when Ray started the worker and the newest agent."""
    import time  # noqa: PLC0415 - this function is pickled by value

    ran = time.time()
    from importlib import import_module  # noqa: PLC0415 - see above

    import_module("ray")  # makes the copy of psutil that Ray installs importable
    psutil = import_module("psutil")

    agents = [one for one in psutil.process_iter(["cmdline", "create_time"]) if "-u" in (one.info["cmdline"] or ())]
    agents = [one for one in agents if one.info["cmdline"][-1].endswith("scheduler.connection.gateway")]
    # The time of the boot, from which psutil counts, is rounded to a second.
    with open("/proc/uptime") as uptime:
        off = time.time() - float(uptime.read().split()[0]) - psutil.boot_time()
    newest = max((one.info["create_time"] for one in agents), default=0.0)
    return {"ran": ran, "worker": psutil.Process().create_time() + off, "agent": newest + off}


def main() -> None:
    times = {"python": time.time()}
    import ray_multicluster_scheduler as rmcs  # noqa: PLC0415 - this is measured

    rmcs.initialize_scheduler_environment(sys.argv[1])
    times["initialized"] = time.time()
    handle = rmcs.submit_task_async(observed)
    times["submitted"] = time.time()
    found = handle.result(timeout=300)
    times["first_result"] = time.time()
    rmcs.submit_task(observed)
    times["second_result"] = time.time()
    rmcs.shutdown()
    times["shut_down"] = time.time()
    print(json.dumps({**times, **found}))


if __name__ == "__main__":
    main()
