"""Nested tasks: a quicksort whose tasks start further tasks."""

import ray


def pivot_and_parts(numbers):
    pivot = numbers[0]
    rest = numbers[1:]
    return pivot, [x for x in rest if x < pivot], [x for x in rest if x >= pivot]


@ray.remote(num_cpus=0.1)
def sort_in_tasks(numbers):
    if len(numbers) < 8:
        return sorted(numbers)
    pivot, smaller, greater = pivot_and_parts(numbers)
    smaller = sort_in_tasks.remote(smaller)
    greater = sort_in_tasks.remote(greater)
    return [*ray.get(smaller), pivot, *ray.get(greater)]


numbers = [(7 * x) % 20 for x in range(20)]
print(ray.get(sort_in_tasks.remote(numbers)) == sorted(numbers))
