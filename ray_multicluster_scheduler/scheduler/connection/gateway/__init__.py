"""The code that runs inside a cluster: the agent, and the code around each call in Ray's workers.

It is shipped as a `py_modules` package and runs on the cluster's own Python and Ray, so it imports only the standard
library, `ray` and `common`. The control plane imports only :mod:`.link.messages`, which both ends share; connectors
also :mod:`.link.host`. Start reading at :mod:`.agent`; then :mod:`.link` is its connection to the control plane,
:mod:`.calls` runs tasks, actors and gangs in Ray, and :mod:`.worker` is the code in worker processes.
"""
