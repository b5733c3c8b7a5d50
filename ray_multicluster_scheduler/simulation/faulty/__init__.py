"""Faulty runs: the scheduler machine against an executor and links that lose, delay, repeat and reorder messages.

Start with `run.py`: `FaultyRun` plays a `Scenario` (`scenario.py`) and records a history, which `simulation/checker`
judges. `campaign.py` runs many seeds and shrinks failures. Used by `scripts/sim_test.py`, `rmcs replay` and the tests.
"""
