"""The `rmcs` command line.

`app` lists the commands; each one is a module of `commands/` and is imported only when it runs, so that `rmcs --help`
answers at once. `arguments/` parses what is typed, `service/` talks to a service over HTTP, `layout/` prints. Only
`main.py` imports this package. Start reading with `app.py`, then `commands/task.py`.
"""
