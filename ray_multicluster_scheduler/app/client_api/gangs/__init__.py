"""Gangs: tasks or actors that start together on one cluster, or not at all."""
