"""Spread calls over a pool of actors."""

import ray
from ray.util import ActorPool


@ray.remote(num_cpus=0)
class Worker:
    def double(self, value):
        return 2 * value


workers = [Worker.remote() for _ in range(2)]
pool = ActorPool(workers)
print(list(pool.map(lambda actor, value: actor.double.remote(value), [1, 2, 3, 4])))
pool.submit(lambda actor, value: actor.double.remote(value), 5)
while pool.has_next():
    print(pool.get_next_unordered())
for worker in workers:
    ray.kill(worker)
