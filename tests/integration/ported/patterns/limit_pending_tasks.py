"""Limit the number of pending tasks with ray.wait."""

import ray

MAX_PENDING = 4


@ray.remote(num_cpus=0.5)
def work(number):
    return number


pending, total, most = [], 0, 0
for number in range(12):
    if len(pending) >= MAX_PENDING:
        ready, pending = ray.wait(pending, num_returns=1)
        total += ray.get(ready[0])
    pending.append(work.remote(number))
    most = max(most, len(pending))
total += sum(ray.get(pending))
print(total, most)
