"""Shared by all other packages, and shipped into clusters: the model, errors, logging, wire frames, redaction of
secrets.

Standard library only, light to import; it imports no other package of ours. Start with ``model`` and ``exception.py``.
"""
