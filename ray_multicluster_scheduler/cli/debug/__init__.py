"""The parts of a debug dump, and the masking of secrets in it. Imported by `commands/debug_dump.py` only.

Start reading with `secret_masking.py`.
"""
