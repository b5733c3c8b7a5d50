"""Results of simulated runs: metrics collected during a run, figures, tables and plots.

Start with `result.py` (`Result`); `run_metrics.py` collects, `report_text.py` and `plot.py` present it. Imported by
`simulation/simulation.py`, the command line and scripts.
"""
