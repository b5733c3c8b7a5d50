"""Named pools with a quota, and preemption: who may use how much, and who gives way to whom. Start with ``pool.py``,
then ``quota_ledger.py``; for preemption, start with ``preemption_plan.py`` and ``victim_selection.py``. Pure, and the
standard library is enough; ``scheduler/lifecycle``, ``scheduler/policy``, the control plane and ``mesh`` import it, it
imports only ``common``. A *place* is where a pool may have a quota of its own: a cluster of the fleet, or whatever
another user of this package divides."""
