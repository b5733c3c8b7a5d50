"""Entrypoint of the agent's Ray job, which ``AgentLauncher`` submits; see the package's docstring."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import NoReturn

from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m

_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray's variable for the runtime environment of a job's workers."""
_STDERR = 2
_SWITCH_INTERVAL_S = 0.0005
"""Ray's threads and the event loop often wait for each other; by Python's default for up to 5 ms each time."""


def main() -> NoReturn:
    """Run the agent. The first word of its last line is the reason of its end, which the control plane reads."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    if sys.version_info < m.OLDEST_PYTHON:
        _end(6, f"{m.OLD_PYTHON} {sys.executable} is Python {sys.version.split()[0]}")
    text = os.environ.pop(m.JOIN_VARIABLE, None)
    _hide_from_workers(m.JOIN_VARIABLE)
    environment = dict(os.environ)
    if text is None:
        _end(2, f"{m.REFUSED} {m.JOIN_VARIABLE} is not set: this program is started by a control plane only.")
    try:
        import ray  # noqa: PLC0415 - its absence has a code of its own
    except ImportError as error:
        _end(3, f"{m.NO_RAY} {sys.executable} cannot import ray: {error}")
    from ray_multicluster_scheduler.common.model.actor_description import ACTOR_NAMESPACE  # noqa: PLC0415 - old Pythons
    from ray_multicluster_scheduler.scheduler.connection.gateway import agent  # noqa: PLC0415 - needs ray
    from ray_multicluster_scheduler.scheduler.connection.gateway.link import connection  # noqa: PLC0415 - old Pythons

    ray.init(address="auto", namespace=ACTOR_NAMESPACE, log_to_driver=False, logging_level="ERROR")
    join = connection.Join.from_dict(json.loads(text))

    async def serve() -> None:
        await agent.Agent(await connection.listen_if_configured(join, ray.util.get_node_ip_address())).run()

    try:
        asyncio.run(serve())
    except agent.Closed as reason:
        _end(0, f"rmcs agent: closed: {reason}")
    except agent.AgentReleased as left:
        following = {"token": left.token, "first_join_s": left.seconds, "lingers": True}
        _execute_anew(environment | {m.JOIN_VARIABLE: json.dumps({**json.loads(text), **following})})
    except connection.CannotListen as error:
        _end(7, f"{m.LISTEN_FAILED} {error}")
    except connection.CannotDial as error:
        _end(4, f"{m.DIAL_FAILED} {error}")
    except connection.Rejected as error:
        _end(5, f"{m.REFUSED} {error}")
    _end(1, "rmcs agent: ended")


def _execute_anew(environment: dict[str, str]) -> NoReturn:
    """Replace this process by a new one with the same id. For Ray its driver has exited, so that its work ends."""
    print("rmcs agent: its program has ended; waiting for the next one", flush=True)
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # that of the listing is closed already
            os.set_inheritable(int(name), int(name) <= _STDERR)
    os.execve(sys.executable, sys.orig_argv, environment)  # nosec B606 # our own command line


def _hide_from_workers(variable: str) -> None:
    """Remove the variable, with the agent's token, from the environment that Ray passes to workers of the job."""
    config = json.loads(os.environ.get(_JOB_CONFIG, "{}"))
    if (config.get("runtime_env") or {}).get("env_vars", {}).pop(variable, None) is not None:
        os.environ[_JOB_CONFIG] = json.dumps(config)


def _end(code: int, sentence: str) -> NoReturn:
    """Print the reason and exit. Ray ends the workers of a driver that has exited; an orderly shutdown could hang."""
    print(sentence, flush=True)
    os._exit(code)


if __name__ == "__main__":
    main()
