"""The verbs and handles inside a cluster: plain Ray calls, made by the item that runs there.

Imported only when code runs inside a cluster, by `execution_context` and the public names of the package. It imports
the standard library, `ray`, `common`, and the few parts of `client_api` and `control_plane` that need no third-party
package. Start reading at :mod:`.scheduler`, which implements the verbs.
"""
