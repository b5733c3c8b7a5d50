"""Workloads for simulations: what is submitted, when, and how long it runs.

Start with `workload.py` (`Item`, `Workload`); `synthetic.py` generates them, `trace.py` reads and writes them as CSV.
Also used by the history export of `control_plane/admin_api`.
"""
