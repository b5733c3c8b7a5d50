"""The control plane: ``config`` (clusters.yaml and settings), ``store`` (the durable record), ``runtime`` (all of one
process, embedded or service) and ``admin_api`` (the HTTP service). Start reading in ``runtime``.
"""
