"""A large value is put once; tasks and an actor refer to it by the global name of its reference."""

import ray

table_ref = ray.put({number: number * number for number in range(1000)})


@ray.remote(num_cpus=0.1)
def look_up(number):
    return ray.get(table_ref)[number]


@ray.remote(num_cpus=0)
class Reader:
    def __init__(self):
        self.table = ray.get(table_ref)

    def read(self, number):
        return self.table[number]


print(ray.get([look_up.remote(number) for number in (3, 30)]))


def make_scaler(factor_ref):
    @ray.remote(num_cpus=0.1)
    def scale(value):
        return value * ray.get(factor_ref)

    return scale


print(ray.get([make_scaler(ray.put(factor)).remote(10) for factor in (2, 3)]))
reader = Reader.remote()
print(ray.get(reader.read.remote(20)))
ray.kill(reader)
