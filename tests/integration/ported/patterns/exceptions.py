"""Catch what a task raises, by its own class and by Ray's, and a call of a dead actor."""

import ray


@ray.remote(num_cpus=0.1)
def divide(a, b):
    return a / b


@ray.remote(num_cpus=0)
class Fragile:
    def ping(self):
        return "pong"


try:
    ray.get(divide.remote(1, 0))
except ray.exceptions.RayTaskError as error:
    print(isinstance(error, ZeroDivisionError), type(error.cause).__name__)
try:
    ray.get(divide.remote(divide.remote(1, 0), 1))
except ZeroDivisionError:
    print("the error of an argument")
fragile = Fragile.remote()
print(ray.get(fragile.ping.remote()))
ray.kill(fragile)
try:
    ray.get(fragile.ping.remote())
except ray.exceptions.RayActorError:
    print("the actor is dead")
