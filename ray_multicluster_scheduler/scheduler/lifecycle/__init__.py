"""The state machine of the scheduler, and the manager that drives it. ``machine.py`` (SchedulerMachine: events in,
instructions out) is where to start reading; ``events.py`` and ``instructions.py`` are its whole interface,
``record.py`` the state of one item, ``placement/`` the scheduling pass. Everything but ``task_lifecycle_manager.py``
and ``transition_log.py`` is pure: no I/O, no clock, no threads, no randomness. The control plane, the simulator and the
tests import it; it imports ``scheduler/{queue,policy,cluster}``, settings and ``common``."""
