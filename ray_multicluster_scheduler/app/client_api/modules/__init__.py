"""Finds the user's own modules that a pickled function needs, so that they can be shipped by value.

Start reading in ``user_modules.py``; imported by ``arguments`` and ``submission``.
"""
