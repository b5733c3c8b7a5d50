"""References inside of lists, dicts and objects: the task that receives them decides when to get the values."""

from dataclasses import dataclass
from typing import Any

import ray


@dataclass
class Batch:
    name: str
    rows: Any


@ray.remote(num_cpus=0.1)
def load(start):
    return list(range(start, start + 3))


@ray.remote(num_cpus=0.1)
def total(rows):
    return sum(rows)


@ray.remote(num_cpus=0.1)
def analyse(parts, batch, by_reference):
    assert all(isinstance(one, ray.ObjectRef) for one in [*parts["rows"], batch.rows, *by_reference])
    ready, rest = ray.wait(parts["rows"], num_returns=2)
    sums = ray.get([total.remote(rows) for rows in [*ready, *rest]])
    return sums, batch.name, ray.get(batch.rows), [by_reference[ref] for ref in ready]


parts = [load.remote(0), load.remote(10)]
names = {parts[0]: "first", parts[1]: "second"}
table = ray.put({"scale": 2})
print(ray.get(analyse.remote({"rows": parts}, Batch("small", table), names)))
boxed = ray.put([table, parts[1]])
print([ray.get(one) for one in ray.get(boxed)])


@ray.remote(num_cpus=0.1)
def unbox(value):
    return [ray.get(one) for one in value]


print(ray.get(unbox.remote(boxed)))
