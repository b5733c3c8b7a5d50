"""Builds the description of a task or job from what a program passes: validated, pickled, with an id.

Start reading in ``submission.py``; ``task_template.py`` caches what repeated submissions of a function share. Imported
by the schedulers and by gangs.
"""
