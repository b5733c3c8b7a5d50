"""Placement policies: filters decide where an item may go, ranks and scores where it should go. Start with
``policy_engine.py`` for the algorithm and ``interfaces.py`` for the interfaces that users implement; ``reasons.py``
lists the reason codes and ``filters/`` has one filter per file. Pure; ``scheduler/lifecycle`` and the control plane
import it, it imports models, settings and the cluster view."""
