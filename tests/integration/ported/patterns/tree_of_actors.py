"""A tree of actors: a supervisor makes workers and combines what they return."""

import ray


@ray.remote(num_cpus=0)
class Trainer:
    def __init__(self, rate):
        self.rate = rate
        self.value = 0

    def step(self):
        self.value += self.rate
        return self.value


@ray.remote(num_cpus=0)
class Supervisor:
    def __init__(self, rates):
        self.trainers = [Trainer.remote(rate) for rate in rates]

    def run(self, steps):
        for _ in range(steps):
            results = ray.get([trainer.step.remote() for trainer in self.trainers])
        return results


supervisor = Supervisor.remote([1, 10])
print(ray.get(supervisor.run.remote(3)))
ray.kill(supervisor)
