"""A generator returns its values one by one; a failure is that of the last reference. Ray's guide on generators."""

import asyncio

import ray


@ray.remote
def numbers(count, failing=False):
    for number in range(count):  # noqa: UP028 - as Ray shows it
        yield number
    if failing:
        raise ValueError("error")


@ray.remote
class Actor:
    def f(self):
        for i in range(3):  # noqa: UP028
            yield i


@ray.remote
class AsyncActor:
    async def f(self):
        for i in range(3):
            yield i


def main():
    ray.init(ignore_reinit_error=True)
    for ref in numbers.remote(3):
        print(ray.get(ref))

    gen = numbers.remote(1, failing=True)
    print("ok", ray.get(next(gen)))
    try:
        ray.get(next(gen))
    except ValueError as error:
        print(error.args[0].splitlines()[0])
    try:
        next(gen)
    except StopIteration:
        print("stopped")

    actors = [Actor.remote(), AsyncActor.remote()]
    print([ray.get(ref) for actor in actors for ref in actor.f.remote()])

    async def read():
        return [await ref async for ref in numbers.remote(3)]

    print(asyncio.run(read()))

    gen = numbers.remote(2)
    ready, unready = ray.wait([gen], timeout=60)
    print(len(ready), len(unready), gen.is_finished(), ray.get(next(gen)))
    for ref in gen:
        print("last", ray.get(ref))
    print(gen.is_finished(), ray.get(gen.completed()) in (None, 2))  # Ray: None; here: the number of values
    for actor in actors:
        ray.kill(actor)


main()
