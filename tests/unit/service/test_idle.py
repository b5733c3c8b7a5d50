"""A service that has nothing to do does nothing: it asks no cluster, and takes little room."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import psutil

from tests.support.running_service import RunningService

MAX_MB = 150.0


def test_a_service_with_nothing_to_do_asks_no_cluster_and_takes_little(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as dashboard:
        asked: list[object] = []

        def listen() -> None:
            try:
                while True:
                    asked.append(dashboard.accept())
            except OSError:
                return  # the test is over

        threading.Thread(target=listen, daemon=True).start()
        config = tmp_path / "clusters.yaml"
        port = dashboard.getsockname()[1]
        config.write_text(f"clusters:\n  - name: quiet\n    dashboard: http://127.0.0.1:{port}\n")
        with RunningService(
            config, tmp_path / "state", snapshot_interval_s=0.1, health_check_interval_s=0.1
        ) as service:
            process = psutil.Process(service.process.pid)
            time.sleep(1.0)  # ten times as long as it would take, did it ask
            assert asked == []
            assert process.memory_info().rss / 2**20 < MAX_MB
            assert service.stop() == 0
        dashboard.shutdown(socket.SHUT_RDWR)
