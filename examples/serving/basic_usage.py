"""Two instances of one model, one of them ten times as fast: what each strategy makes of 120 requests."""

import time
from collections import Counter

from stub_instance import serve

from ray_multicluster_scheduler.serving import SchedulerRequest, SwarmPilotScheduler

REQUESTS = 120


def measure(strategy: str, ports: dict[str, int]) -> None:
    with SwarmPilotScheduler(strategy=strategy) as scheduler:
        names = {scheduler.add_instance(f"127.0.0.1:{port}").uuid: name for name, port in ports.items()}
        begin = time.monotonic()
        requests = [SchedulerRequest(model_type="ocr", input_data=page) for page in range(REQUESTS)]
        tasks = [scheduler.schedule(request).task_id for request in requests]
        for task in tasks:
            scheduler.wait(task, timeout=120)
        took = time.monotonic() - begin
        served = Counter(names[scheduler.explain(task)["instance"]] for task in tasks)
        mean = sum(_milliseconds(scheduler, task) for task in tasks) / REQUESTS
        print(
            f"{strategy:15} fast {served['fast']:3}, slow {served['slow']:3}; {took:4.1f} s in all, {mean:5.0f} ms mean"
        )
        print(f"                the last one: {scheduler.explain(tasks[-1])['reason']}")


def _milliseconds(scheduler: SwarmPilotScheduler, task: str) -> float:
    info = scheduler.task_tracker.get_task_info(task)
    return (info.completion_time - info.submit_time) * 1000


if __name__ == "__main__":
    servers = {"fast": serve(ms=10), "slow": serve(ms=100)}
    ports = {name: server.server_address[1] for name, server in servers.items()}
    for strategy in ("round_robin", "shortest_queue"):
        measure(strategy, ports)
