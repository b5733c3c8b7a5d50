"""Retry a task whose exception is expected to pass."""

import ray


@ray.remote(num_cpus=0)
class Attempts:
    def __init__(self):
        self.number = 0

    def next(self):
        self.number += 1
        return self.number


@ray.remote(max_retries=3, retry_exceptions=[ConnectionError], num_cpus=0.1)
def fetch(attempts):
    number = ray.get(attempts.next.remote())
    if number < 2:
        raise ConnectionError(f"attempt {number}")
    return f"attempt {number} succeeded"


attempts = Attempts.remote()
print(ray.get(fetch.remote(attempts)))
ray.kill(attempts)
