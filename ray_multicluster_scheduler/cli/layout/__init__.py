"""Printing: JSON, YAML, tables and text that fit the terminal, messages on stderr.

Imported by all other packages of the command line; imports none of them. Start reading with `output.py`.
"""
