"""A strategy of your own: requests marked `urgent` go where they finish first, all others where the queue is longest,
so that one instance stays free."""

from stub_instance import serve

from ray_multicluster_scheduler.serving import (
    BaseStrategy,
    Choice,
    SchedulerRequest,
    SwarmPilotScheduler,
    register_strategy,
)


class KeepOneFree(BaseStrategy):
    name = "keep_one_free"
    moves_waiting = False  # what waits here stays here

    def select(self, candidates, task):
        if task.metadata.get("urgent"):
            best = min(candidates, key=lambda one: one.finish_ms)
            return Choice(best.instance, "urgent: finishes first")
        best = max(candidates, key=lambda one: one.length)
        return Choice(best.instance, "not urgent: the longest queue")


if __name__ == "__main__":
    register_strategy("keep_one_free", KeepOneFree)
    with SwarmPilotScheduler(strategy="keep_one_free") as scheduler:
        for _ in range(2):
            scheduler.add_instance(f"127.0.0.1:{serve(ms=20).server_address[1]}")
        for page in range(20):
            scheduler.schedule(SchedulerRequest(model_type="ocr", input_data=page))
        urgent = scheduler.schedule(SchedulerRequest(model_type="ocr", input_data=99, metadata={"urgent": True}))
        print(scheduler.wait(urgent.task_id, timeout=60), "because", urgent.reason)
        print(sorted(row.length for row in scheduler.queue_info()), "requests are charged to the instances")
