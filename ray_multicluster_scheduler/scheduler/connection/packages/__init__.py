"""Packages for runtime environments: local folders and modules are packed, named by content, and uploaded to a cluster
if it lacks them. Imported by ``connection`` and ``scheduler_core``, and by the client library for its own packages.
Start with ``runtime_env_upload.py``."""
