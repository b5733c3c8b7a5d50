"""Results of simulated runs: metrics collected during a run, figures, tables and plots.

`run_metrics.py` collects, `result.py` holds the `Result`, `report_text.py` and `plot.py` present it. Imported by
`simulation/simulation.py`, the command line and scripts.
"""
