"""The connection of an agent to its control plane: the messages, the handshake, and the transports.

:mod:`.messages` describes the protocol: start there. :mod:`.connection` dials or listens; :mod:`.host` and
:mod:`.host_tunnel` carry the connection through a Ray actor, for agents that a connector has started. The agent, and
``scheduler/connection`` on our side, import it.
"""
