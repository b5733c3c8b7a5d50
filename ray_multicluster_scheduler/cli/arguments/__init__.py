"""Parsing the command line: shared options, completion, the lookup of items by id, lazily loaded commands and usage
errors.

Imported by `app.py` and `commands/`. Start reading with `options.py`.
"""
