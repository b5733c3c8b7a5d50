"""Several tasks, and the tasks that they start, report their progress to one actor, whose handle they are given."""

import ray


@ray.remote(num_cpus=0)
class Progress:
    def __init__(self):
        self.done = {}

    def report(self, task, number):
        self.done[task] = number

    def total(self):
        return sum(self.done.values())


@ray.remote(num_cpus=0.1)
def part(progress, name):
    ray.get(progress.report.remote(name, 1))


@ray.remote(num_cpus=0.1)
def work(context, task):
    progress = context["progress"]
    for number in range(1, 4):
        ray.get(progress.report.remote(task, number))
    ray.get([part.remote(progress, (task, name)) for name in "ab"])
    return task


progress = Progress.remote()
print(sorted(ray.get([work.remote({"progress": progress}, task) for task in range(3)])))
print(ray.get(progress.total.remote()))
ray.kill(progress)
