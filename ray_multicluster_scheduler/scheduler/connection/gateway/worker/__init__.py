"""The code in Ray's worker processes, and the protocol between them and their agent.

:mod:`.worker` runs a task and :mod:`.actor_shell` holds a user's object: start there. :mod:`.channel` and
:mod:`.actor_channel` are a worker's connection to its agent, whose end is :mod:`.worker_server`; :mod:`.codec` encodes
orders and results. Of the gateway, modules in here import only this package and :mod:`..link.messages`.
"""
