"""Faulty runs: the machine and hands that do, at every edge, what hands and networks do at their worst."""
