"""Events of a control plane: their published form and filters (``event.py``), and delivery (``event_hub.py``).

Start with ``event.py``. The runtime imports it to publish; the REST service, ``serving`` and the client library import
it to subscribe.
"""
