"""`python -m ray_multicluster_scheduler.scheduler.connection.gateway`: the entrypoint of the agent's job."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import NoReturn

from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m

_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""By which Ray tells the program of a job what environment its workers have."""
_SWITCH_INTERVAL_S = 0.0005
"""Ray's threads and the event loop wait for each other often; at Python's default, up to 5 ms each time."""


def main() -> NoReturn:
    """Run the agent; the first word of the last line says why it ended, for the control plane to read."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    if sys.version_info < m.OLDEST_PYTHON:
        _end(6, f"{m.OLD_PYTHON} {sys.executable} is Python {sys.version.split()[0]}")
    text = os.environ.pop(m.JOIN_VARIABLE, None)
    _keep_to_ourselves(m.JOIN_VARIABLE)
    if text is None:
        _end(2, f"{m.REFUSED} {m.JOIN_VARIABLE} is not set: this program is started by a control plane only.")
    try:
        import ray  # noqa: PLC0415 - its absence is an answer of its own
    except ImportError as error:
        _end(3, f"{m.NO_RAY} {sys.executable} cannot import ray: {error}")
    from ray_multicluster_scheduler.common.model.actor_description import ACTOR_NAMESPACE  # noqa: PLC0415 - old Pythons
    from ray_multicluster_scheduler.scheduler.connection.gateway import agent  # noqa: PLC0415 - needs ray
    from ray_multicluster_scheduler.scheduler.connection.gateway.link import dial, listen  # noqa: PLC0415 - need ray

    ray.init(address="auto", namespace=ACTOR_NAMESPACE, log_to_driver=False, logging_level="ERROR")
    join = dial.Join.from_dict(json.loads(text))

    async def serve() -> None:
        await agent.Agent(await listen.ready_to_be_dialled(join, ray.util.get_node_ip_address())).run()

    try:
        asyncio.run(serve())
    except agent.Closed as reason:
        _end(0, f"rmcs agent: closed by the control plane: {reason}")
    except listen.CannotListen as error:
        _end(7, f"{m.LISTEN_FAILED} {error}")
    except dial.CannotDial as error:
        _end(4, f"{m.DIAL_FAILED} {error}")
    except dial.Rejected as error:
        _end(5, f"{m.REFUSED} {error}")
    _end(1, "rmcs agent: ended")


def _keep_to_ourselves(variable: str) -> None:
    """What runs in a job has the job's variables, too. What its agent was told is not for them."""
    config = json.loads(os.environ.get(_JOB_CONFIG, "{}"))
    if (config.get("runtime_env") or {}).get("env_vars", {}).pop(variable, None) is not None:
        os.environ[_JOB_CONFIG] = json.dumps(config)


def _end(code: int, sentence: str) -> NoReturn:
    """Say why and go. Ray ends the workers of a driver that is gone; waiting for a polite shutdown could hang."""
    print(sentence, flush=True)
    os._exit(code)


if __name__ == "__main__":
    main()
