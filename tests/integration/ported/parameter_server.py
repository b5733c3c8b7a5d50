"""Fit a line with a parameter server and workers that send gradients, first together, then as they come."""

import random

import ray

WORKERS = 2
ROUNDS = 15
POINTS = 60
SLOPE, OFFSET = 3.0, -1.0


@ray.remote
class ParameterServer:
    def __init__(self, rate):
        self.rate = rate
        self.weights = [0.0, 0.0]
        self.updates = 0

    def apply(self, *gradients):
        for position in range(len(self.weights)):
            mean = sum(one[position] for one in gradients) / len(gradients)
            self.weights[position] -= self.rate * mean
        self.updates += 1
        return list(self.weights)

    @ray.method(num_returns=2)
    def summary(self):
        return list(self.weights), self.updates


@ray.remote
class Worker:
    def __init__(self, seed):
        dice = random.Random(seed)
        self.points = [(x, SLOPE * x + OFFSET) for x in (dice.uniform(-1, 1) for _ in range(POINTS))]

    def gradient(self, weights):
        slope, offset = weights
        errors = [(slope * x + offset - y, x) for x, y in self.points]
        return [sum(2 * e * x for e, x in errors) / POINTS, sum(2 * e for e, _ in errors) / POINTS]


def together(server, workers):
    weights = ray.put([0.0, 0.0])
    for _ in range(ROUNDS):
        weights = server.apply.remote(*[worker.gradient.remote(weights) for worker in workers])
    ray.get(weights)


def as_they_come(server, workers):
    weights, _ = ray.get(server.summary.remote())
    running = {worker.gradient.remote(weights): worker for worker in workers}
    for _ in range(ROUNDS):
        ready, _ = ray.wait(list(running), num_returns=1)
        worker = running.pop(ready[0])
        weights = server.apply.remote(ready[0])
        running[worker.gradient.remote(weights)] = worker
    ray.get(list(running))


def main():
    ray.init(ignore_reinit_error=True)
    server = ParameterServer.options(num_cpus=0.1).remote(0.4)
    workers = [Worker.remote(seed) for seed in range(WORKERS)]
    together(server, workers)
    as_they_come(server, workers)
    (slope, offset), updates = ray.get(server.summary.remote())
    print(f"slope {slope:.1f}, offset {offset:.1f}, after {updates} updates")
    for actor in [server, *workers]:
        ray.kill(actor)
    ray.shutdown()


if __name__ == "__main__":
    main()
