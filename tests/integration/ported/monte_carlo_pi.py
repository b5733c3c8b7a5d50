"""Estimate pi by throwing darts, in many tasks whose progress one actor watches."""

import random

import ray

TASKS = 8
DARTS = 20_000


@ray.remote
class Progress:
    def __init__(self, expected):
        self.expected = expected
        self.done = {}

    def report(self, task, darts):
        self.done[task] = self.done.get(task, 0) + darts

    def fraction(self):
        return sum(self.done.values()) / self.expected


@ray.remote
def throw(task, darts, progress):
    dice = random.Random(task)
    inside = 0
    for number in range(1, darts + 1):
        x, y = dice.random(), dice.random()
        inside += x * x + y * y <= 1.0
        if number % (darts // 4) == 0:
            progress.report.remote(task, darts // 4)
    return inside


@ray.remote(num_cpus=0.5)
def total(*hits):
    return sum(hits)


def main():
    ray.init()
    progress = Progress.remote(TASKS * DARTS)
    hits = [throw.remote(task, DARTS, progress) for task in range(TASKS)]
    # The sum waits for all of them by itself: handles are arguments.
    everything = total.remote(*hits)
    pi = 4 * ray.get(everything) / (TASKS * DARTS)
    while ray.get(progress.fraction.remote()) < 1.0:
        pass
    print(f"pi is about {pi:.4f}, from {TASKS * DARTS} darts")
    ray.shutdown()


if __name__ == "__main__":
    main()
