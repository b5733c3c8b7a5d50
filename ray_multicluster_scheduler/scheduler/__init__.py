"""The scheduler and its connections to clusters.

Pure parts, without I/O: ``lifecycle`` (the state machine), ``queue``, ``policy``, ``pools`` (quota and preemption) and
``cluster``. Around them: ``scheduler_core`` (carries out instructions, collects results), ``connection`` (links,
agents, Jobs API), ``monitor`` and ``health``. Start with ``lifecycle/machine.py``. ``serving``, ``simulation``,
``control_plane.runtime`` and the layers above them may import it; it imports only ``control_plane.store``,
``control_plane.config`` and ``common``.
"""
