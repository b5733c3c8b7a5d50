"""The agent's calls: tasks, actors with their methods, and gangs, submitted to Ray and reported to the control plane.

Imported by the agent only. Start reading at :mod:`.calls`, which runs tasks; :mod:`.actors` and :mod:`.gangs` build on
it, and :mod:`.reporting` sends progress and results.
"""
