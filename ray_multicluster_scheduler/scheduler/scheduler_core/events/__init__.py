"""Events of a control plane: their published form and filters (``event.py``), and delivery (``event_hub.py``).

The runtime publishes to the hub; the REST service and client programs subscribe.
"""
