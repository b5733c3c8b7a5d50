"""Live data for clients: events by SSE and WebSocket, long polls for items, and streams of output.

``routes`` and ``http/app`` use it. Start at ``event_stream`` or ``long_poll``; ``access.expiry`` ends streams of
revoked tokens.
"""
