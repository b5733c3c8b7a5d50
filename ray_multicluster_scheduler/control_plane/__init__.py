"""The control plane: ``config`` (clusters.yaml and settings), ``store`` (the durable record), ``runtime`` (all of one
process, embedded or service) and ``admin_api`` (the HTTP service). Start reading in ``runtime``. ``cli`` may import all
of it, ``app`` all but ``admin_api``, and the layers below only ``store`` and ``config``.
"""
