"""A pipeline: a task takes items from a queue while the program fills it."""

import ray
from ray.util.queue import Empty, Queue


@ray.remote(num_cpus=0.5)
def sum_of_squares(source):
    total = 0
    while True:
        item = source.get()
        if item is None:
            return total
        total += item * item


queue = Queue(maxsize=2)
consumer = sum_of_squares.remote(queue)
for number in range(5):
    queue.put(number)
queue.put(None)
print(ray.get(consumer))
try:
    queue.get_nowait()
except Empty:
    print("empty")
queue.shutdown()
