"""The checks of `rmcs doctor`: of this machine, of a service, of clusters. Each yields findings.

Imported by `commands/doctor.py` only. Start reading with `findings.py`.
"""
