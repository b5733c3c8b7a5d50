"""Placement of queued items: ``scheduling_pass.py`` decides what goes where and is where to start reading;
``prefetch.py`` sends short tasks before a slot is free; ``reservation.py`` reserves capacity for wide items;
``start_estimate.py`` estimates start times from ``run_times.py``. Pure. Only ``scheduler/lifecycle`` imports it, apart
from the start estimate that explanations show."""
