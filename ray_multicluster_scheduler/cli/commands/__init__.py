"""The commands of `rmcs`: each module holds one, a group, or a few related ones; `app.py` lists them.

A module is imported only when its command runs, and imports heavy packages (rich, pydantic, the client library) only in
the functions that use them. Start reading with `task.py`.
"""
