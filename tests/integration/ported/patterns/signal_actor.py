"""Start tasks together by a signal that an actor gives."""

import asyncio

import ray


@ray.remote(num_cpus=0)
class Signal:
    def __init__(self):
        self.event = asyncio.Event()

    def send(self):
        self.event.set()

    async def wait(self):
        await self.event.wait()


@ray.remote(num_cpus=0.1)
def wait_and_go(signal, number):
    ray.get(signal.wait.remote())
    return number


signal = Signal.remote()
tasks = [wait_and_go.remote(signal, number) for number in range(2)]
ready, waiting = ray.wait(tasks, timeout=0)
print(len(ready), len(waiting))
ray.get(signal.send.remote())
print(ray.get(tasks))
ray.kill(signal)
