"""Limit how many tasks run at once by the resources that each asks for."""

import ray


@ray.remote(num_cpus=1, memory=50 * 1024 * 1024)
def load(number):
    return len(bytearray(1024)) + number


print(ray.get([load.remote(number) for number in range(3)]))
print(ray.get(load.options(num_cpus=0.1, memory=1024).remote(0)))
