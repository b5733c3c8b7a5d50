"""Give up on a task that takes too long, and cancel it."""

import time

import ray


@ray.remote(num_cpus=0.1)
def forever():
    while True:
        time.sleep(0.05)


task = forever.remote()
try:
    ray.get(task, timeout=0.1)
except ray.exceptions.GetTimeoutError:
    print("too long")
ray.cancel(task, force=True)
try:
    ray.get(task)
except (ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError):
    print("cancelled")
