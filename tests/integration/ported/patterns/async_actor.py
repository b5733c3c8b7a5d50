"""An actor with async methods runs many calls at the same time."""

import asyncio

import ray


@ray.remote(num_cpus=0)
class Rendezvous:
    def __init__(self, parties):
        self.missing = parties
        self.complete = asyncio.Event()

    async def arrive(self):
        self.missing -= 1
        if self.missing == 0:
            self.complete.set()
        await self.complete.wait()
        return "met"


place = Rendezvous.remote(3)


async def main():
    return await asyncio.gather(*[place.arrive.remote() for _ in range(3)])


print(asyncio.run(main()))
ray.kill(place)
