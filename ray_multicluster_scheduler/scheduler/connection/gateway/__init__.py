"""The code that runs inside a cluster: the link agent, and what it puts around each call.

It is shipped there as a `py_modules` package and runs on the cluster's own Python and Ray, so it imports
only the standard library, `ray` and `common`. Nothing in here may be imported by the control plane, except
:mod:`.messages`, which both ends share.
"""
