"""Arguments of tasks, actors and method calls: pickling, values stored with ``put``, and handles used as arguments.

Start reading in ``arguments.py``. Imported by the modules that submit something (submission, actors, gangs, remote).
"""
