"""The connector: a process of our own machine that speaks Ray Client to one cluster, for one agent there.

It is run by an interpreter that has the cluster's version of Ray, and is a pipe for bytes: between our port for agents
and the agent that lives in a detached actor over there. It imports only the standard library, `ray`, `grpc`, `common`
and the gateway. Nothing of ours waits for it: it is watched from outside, killed when it hangs, and replaced.

It is given one line of JSON on its standard input (:class:`.order.Order`), says what happens in lines of JSON on its
standard output, and ends when its standard input does.
"""
