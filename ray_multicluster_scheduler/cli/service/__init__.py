"""The connection of commands to a service over HTTP, and to the programs of this user over their local sockets.

Imported by `commands/`, `arguments/`, `doctor/` and `debug/`. Start reading with `client.py`.
"""
