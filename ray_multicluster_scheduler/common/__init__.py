"""What every other package uses and clusters get, too: the model, errors, logging, wire frames, redaction of secrets.

Standard library only, light to import; it imports no other package of ours. Start with ``model`` and ``exception.py``.
"""
