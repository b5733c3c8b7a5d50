"""Gangs: several tasks or actors that are placed together and start at the same time.

``member.py`` is what programs import (standard library only, since clusters load it too); ``gang_submission.py`` turns
members into the description of one gang. Imported by the schedulers.
"""
