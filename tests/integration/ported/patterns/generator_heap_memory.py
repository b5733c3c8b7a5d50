"""Many large values from one task, of which only one is in memory at a time; also with their number unknown before.
Ray's pattern on generators that reduce the use of heap memory, and its guide on dynamic generators."""

import ray


@ray.remote
def large_values_generator(number):
    for index in range(number):
        yield bytes([index]) * 1_000_000
        print(f"yielded return value {index}")


@ray.remote(num_returns="dynamic")
def split(array, chunk):
    while len(array) > 0:
        yield array[:chunk]
        array = array[chunk:]


@ray.remote
def get_size(generator):
    return [len(ray.get(ref)) for ref in generator]


def main():
    ray.init(ignore_reinit_error=True)
    number = 3
    values = large_values_generator.options(num_returns=number).remote(number)
    print([len(value) for value in ray.get(values)])
    first, *rest = large_values_generator.remote(number)
    print(ray.get(first)[:1], len(rest))

    dynamic_ref = split.remote(list(range(10)), 4)
    for ref in ray.get(dynamic_ref):
        print(ray.get(ref))
    print(ray.get(get_size.remote(dynamic_ref)))


main()
