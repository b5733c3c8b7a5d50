"""The connector: a process of our own machine that connects one agent to us by Ray Client.

It runs on an interpreter that has the cluster's version of Ray, and pipes bytes between the control plane's port for
agents and the agent, which lives in a detached actor of the cluster. It imports only the standard library, `ray`,
`grpc`, `common` and the gateway; the control plane imports only :mod:`.protocol`. The control plane watches it from
outside, kills it when it hangs, and replaces it. It reads a line of JSON (:class:`.protocol.ConnectorConfig`) and then
commands from its standard input, writes events to its standard output, and ends when its standard input does. Start
reading at :mod:`.__main__`, then :mod:`.session`.
"""
