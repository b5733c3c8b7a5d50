"""The processes of the serving benchmark: stub instances, our router and its peers, each peer from a venv of its own.

The venvs are made with pip in a cache folder when they are first needed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from bench._serving_http import RequestError, ask
from bench._serving_stub import MODEL

PATH = "/v1/chat/completions"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rmcs-bench"
REQUIREMENTS = {"smg": ["smg>=1.13"], "ray_serve": ["ray[serve]>=2.55,<3"], "litellm": ["litellm[proxy]>=1.100"]}
_READY_WITHIN_S = 120.0


class PeerUnavailable(Exception):
    """A peer cannot be installed or started here; the message says why."""


def chat(size: float = 0.0, max_tokens: int = 100) -> bytes:
    """A request whose size the stub reads from ``seed``, and a router may see in ``max_tokens``."""
    messages = [{"role": "user", "content": "Is this a benchmark?"}]
    document = {"model": MODEL, "messages": messages, "seed": round(size * 1e6), "max_tokens": max_tokens}
    return json.dumps(document).encode()


class Processes:
    """Starts processes, and ends them and their descendants when the block is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, command: Sequence[str], *, log: str, environ: Mapping[str, str] | None = None) -> Running:
        running = Running(command, self.folder / f"{log}.log", environ or {})
        self._stack.callback(running.stop)
        return running

    def stubs(self, *speeds: float) -> Stubs:
        command = [sys.executable, "-m", "bench._serving_stub", ",".join(map(str, speeds))]
        return Stubs(self.start(command, log="stubs"))

    def rmcs(
        self, ports: Sequence[int], *, kind: str = "openai", concurrency: int | None = None, **settings: Any
    ) -> Server:
        """Our router, which has observed nothing yet."""
        instance = {"host": "127.0.0.1", "kind": kind, "model_name": MODEL, "concurrency": concurrency}
        path = self.folder / f"rmcs-{time.monotonic_ns()}.yaml"
        path.write_text(yaml.safe_dump({"instances": [{**instance, "port": port} for port in ports], **settings}))
        port = free_port()
        command = ["-m", "ray_multicluster_scheduler.serving", "--config", str(path), "--port", str(port)]
        server = Server("rmcs", self.start([sys.executable, *command], log="rmcs"), port)
        server.wait(server.check_health)  # a request would be observed, and so tell it something
        return server

    def peer(self, name: str, ports: Sequence[int]) -> Server:
        """Raises PeerUnavailable."""
        try:
            return {"smg": self.smg, "litellm": self.litellm, "ray_serve": self.ray_serve}[name](ports)
        except (OSError, subprocess.SubprocessError, RequestError) as error:
            raise PeerUnavailable(f"{type(error).__name__}: {error}"[:500]) from None

    def smg(self, ports: Sequence[int]) -> Server:
        port, metrics = free_port(), free_port()
        urls = [f"http://127.0.0.1:{one}" for one in ports]
        command = [str(install("smg") / "smg"), "launch", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--policy", "least_load", "--log-level", "error", "--worker-urls", *urls]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
        return self._ready("smg", command, port)

    def litellm(self, ports: Sequence[int]) -> Server:
        port, path = free_port(), self.folder / "litellm.yaml"
        models = [
            {
                "model_name": MODEL,
                "litellm_params": {
                    "model": f"openai/{MODEL}",
                    "api_base": f"http://127.0.0.1:{one}/v1",
                    "api_key": "none",
                },
            }
            for one in ports
        ]
        path.write_text(yaml.safe_dump({"model_list": models}))
        command = [str(install("litellm") / "litellm"), "--config", str(path), "--host", "127.0.0.1"]
        environ = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no download
            "LITELLM_LOG": "ERROR",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # loopback only, and no key to check
        }
        return self._ready("litellm", [*command, "--port", str(port)], port, environ)

    def ray_serve(self, _: Sequence[int]) -> Server:
        """Its replica gives the stub's answer itself."""
        port = free_port()
        program = str(Path(__file__).with_name("_serving_ray.py"))
        command = [str(install("ray_serve") / "python"), program, str(port), str(self.folder / "ray")]
        return self._ready("ray_serve", command, port, {"RAY_ADDRESS": ""})

    def _ready(self, name: str, command: Sequence[str], port: int, environ: Mapping[str, str] | None = None) -> Server:
        server = Server(name, self.start(command, log=name, environ=environ), port)
        server.wait(lambda: asyncio.run(ask(port, PATH, chat())))
        return server


class Running:
    """A process with its descendants, which are ended with it."""

    def __init__(self, command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        self._log = log
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" or command[0] == sys.executable}
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                env={**clean, **environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if "bench._serving_stub" in command else file,
                stderr=file,
                text=True,
                start_new_session=True,  # so that Ctrl+C reaches only the benchmark, which then ends them in order
            )

    def stop(self) -> None:
        try:
            family = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, timeout=10)

    def log_tail(self) -> str:
        """The end of what it wrote."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "it wrote nothing"


class Stubs:
    """Stub instances; ``ports`` are theirs."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self.ports: list[int] = json.loads(self._line() or "[]")

    def ends(self) -> dict[int, float]:
        """When each numbered request ended, by the monotonic clock, since the last call."""
        return {int(number): at for number, at in self._ask("ends").items()}

    def answered(self) -> int:
        """How many POST requests were answered since the last call."""
        return int(self._ask("answered"))

    def _ask(self, what: str) -> Any:
        assert self._running.process.stdin is not None
        self._running.process.stdin.write(f"{what}\n")
        self._running.process.stdin.flush()
        return json.loads(self._line())

    def _line(self) -> str:
        assert self._running.process.stdout is not None
        return self._running.process.stdout.readline()


class Server:
    """A router that answers on ``port``."""

    def __init__(self, name: str, running: Running, port: int) -> None:
        self.name, self.port, self._running = name, port, running
        self.stop: Callable[[], None] = running.stop
        self.pid = running.process.pid

    def cpu_s(self) -> float:
        """CPU time of the process and its descendants so far."""
        process = psutil.Process(self.pid)
        total = 0.0
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += sum(one.cpu_times()[:2])
        return total

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)

    def check_health(self) -> None:
        """Raises OSError while an instance of our router is not ready."""
        state = self.get("/health")
        if state["healthy_instances"] < state["instances"]:
            raise OSError(f"{state['healthy_instances']} of {state['instances']} instances are healthy")

    def wait(self, check: Callable[[], Any]) -> None:
        """Until the check passes. Raises PeerUnavailable."""
        until = time.monotonic() + _READY_WITHIN_S
        problem: Exception | None = None
        while time.monotonic() < until:
            if self._running.process.poll() is not None:
                break
            try:
                check()
                return
            except (OSError, RequestError) as error:
                problem = error
                time.sleep(0.2)
        code = self._running.process.poll()
        ended = f"does not answer ({problem})" if code is None else f"ended with {code}"
        raise PeerUnavailable(f"{self.name} {ended}: {self._running.log_tail()}"[:500])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def install(peer: str) -> Path:
    """The folder with the programs of a peer. Raises PeerUnavailable."""
    folder = CACHE / peer
    stamp, wanted = folder / "requirements", "\n".join(REQUIREMENTS[peer])
    if stamp.exists() and stamp.read_text() == wanted:
        return folder / "bin"
    print(f"installing {', '.join(REQUIREMENTS[peer])} into {folder} (once; a minute or two) …", file=sys.stderr)
    venv.create(folder, clear=True, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *REQUIREMENTS[peer]], check=False, capture_output=True, text=True)
    if done.returncode:
        raise PeerUnavailable(f"pip failed: {done.stderr.strip().splitlines()[-1:]}")
    stamp.write_text(wanted)
    return folder / "bin"
