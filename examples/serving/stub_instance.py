"""A stand-in for a model server: one request after another, each in a fixed time.

python stub_instance.py 9001 --model ocr --ms 20
"""

import argparse
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve(port: int = 0, model: str = "ocr", ms: float = 20.0) -> ThreadingHTTPServer:
    """Start it on a thread; `server_address` has its port."""
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # GET /info
            deployed = {"model_name": model, "replicas": 1}
            self.answer({"status": "running", "deployed_model": deployed, "queue_info": {"length_of_queue": 0}})

        def do_POST(self) -> None:  # POST /queue/submit
            task = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with one_at_a_time:
                time.sleep(ms / 1000)
            self.answer({"task_id": task["task_id"], "result": {"text": f"page {task['task_input']}"}})

        def answer(self, document: dict) -> None:
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--model", default="ocr")
    parser.add_argument("--ms", type=float, default=20.0)
    options = parser.parse_args()
    running = serve(options.port, options.model, options.ms)
    print(f"serving {options.model} on http://127.0.0.1:{running.server_address[1]}, {options.ms:g} ms a request")
    threading.Event().wait()
