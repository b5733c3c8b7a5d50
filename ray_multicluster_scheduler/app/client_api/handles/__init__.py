"""Handles of submitted items (``handle.py``, the place to start), and ``get``, ``wait`` and progress bars over them.

Everything in the client API may import from here; the control plane does not.
"""
