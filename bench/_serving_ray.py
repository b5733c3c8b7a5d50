"""A Ray Serve application behind Serve's own HTTP proxy; run by the Python of its venv: PORT FOLDER.

Its replica gives the stub's answer. It ends when stdin is closed.
"""

import json
import sys

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

ANSWER = json.dumps({"id": "chatcmpl-1", "choices": [{"index": 0, "message": {"content": "Yes."}}]})


@serve.deployment(num_replicas=1, max_ongoing_requests=100, ray_actor_options={"num_cpus": 0})
class Model:
    async def __call__(self, request: Request) -> Response:
        await request.body()
        return Response(ANSWER, media_type="application/json")


def main() -> None:
    port, folder = sys.argv[1:]
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 1024**2,
        log_to_driver=False,
        _temp_dir=folder,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(port), "access_log": False})
    serve.run(Model.bind(), route_prefix="/")
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
