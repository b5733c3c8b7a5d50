"""A fake Ray interpreter: it answers like a Ray head, and starts child processes that are hard to find.

Run as ``fake -m ray.scripts.scripts start --head …``. ``FAKE_RAY_*`` in the environment makes it misbehave.
"""

from __future__ import annotations

import http.server
import json
import mmap
import os
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


class Dashboard(http.server.BaseHTTPRequestHandler):
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text(encoding="utf-8")

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            self._send(403, b"Forbidden")
            return
        bodies: dict[str, object] = {
            "/api/version": {"session_name": f"session_{os.getpid()}"},
            "/api/v0/nodes": {"data": {"result": {"result": [{"state": "ALIVE"}]}}},
            "/environ": dict(os.environ),
            "/argv": sys.argv,
        }
        self._send(200, json.dumps(bodies.get(self.path, [])).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def misbehave() -> None:
    once = os.environ.get("FAKE_RAY_FAIL_ONCE")
    if once and not Path(once).exists():
        Path(once).touch()
        sys.exit("fake: address already in use")
    if os.environ.get("FAKE_RAY_FAIL"):
        sys.exit("fake: no luck today")


def hard_to_find_children() -> None:
    """One plain, one in a session of its own, and one that also left its parent and dropped its environment."""
    subprocess.Popen(SLEEP)
    subprocess.Popen(SLEEP, start_new_session=True)
    if os.fork() == 0:
        subprocess.Popen(SLEEP, start_new_session=True, env={})
        os._exit(0)
    os.wait()


def main() -> None:
    options = dict(arg.split("=", 1) for arg in sys.argv if arg.startswith("--") and "=" in arg)
    misbehave()
    hard_to_find_children()
    shm = os.environ.get("FAKE_RAY_SHM")
    if shm:
        with open(shm, "w+b") as file:
            file.truncate(4096)
            kept = mmap.mmap(file.fileno(), 4096)
        assert len(kept) == 4096
    for port in ("--ray-client-server-port", "--dashboard-agent-listen-port"):
        server = Server(("127.0.0.1", int(options[port])), Echo)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    dashboard = http.server.ThreadingHTTPServer(("127.0.0.1", int(options["--dashboard-port"])), Dashboard)
    threading.Thread(target=dashboard.serve_forever, daemon=True).start()
    lifetime = float(os.environ.get("FAKE_RAY_LIFETIME", "600"))
    time.sleep(lifetime)


if __name__ == "__main__":
    main()
