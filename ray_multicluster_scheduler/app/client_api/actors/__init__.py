"""Actors as programs use them: ActorHandle, method calls, and submission and look-up by name.

``actors.py`` is the place to start: it submits actors and keeps the registry of the living ones. The schedulers, gangs
and ``remote/`` import from here. ``actor_reference.py`` and ``class_methods.py`` are also loaded inside clusters and
import only the standard library and ``common``.
"""
