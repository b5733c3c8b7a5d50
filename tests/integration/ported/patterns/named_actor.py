"""Find an actor by its name, or make it."""

import ray


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self):
        self.value = 0

    def add(self, amount):
        self.value += amount
        return self.value


def counter():
    try:
        return ray.get_actor("the counter")
    except ValueError:
        return Counter.options(name="the counter").remote()


ray.get(counter().add.remote(1))
print(ray.get(counter().add.remote(2)))
same = Counter.options(name="the counter", get_if_exists=True).remote()
print(ray.get(same.add.remote(3)))
ray.kill(same)
