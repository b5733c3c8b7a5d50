"""The control plane in the user's own process: one object, one thread, one loop."""
