"""The simulated fleet: executor, links and clusters in virtual time, which stand in for Ray in a `Simulation`.

Start with `simulated_executor.py`; it drives one `SimulatedLink` per cluster, and each link one `SimulatedClusterRun`.
Imported by `simulation/simulation.py` and `simulation/report` only; it imports no Ray and opens no connection.
"""
