"""Agents started by Ray Client: the carrier and the connector process that it supervises, one per agent. Our process
never imports Ray; the code of the connector itself is in ``connection/connector``. Imported by ``ray_client_pool.py``.
Start with ``client_carrier.py``."""
