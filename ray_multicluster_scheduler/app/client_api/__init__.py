"""The client library: the verbs, handles, actors, the executor, and the schedulers behind them.

Start with ``scheduler.py`` (UnifiedScheduler); other verbs are generated from it.
``execution_context.py`` chooses between that class and the native one in ``in_cluster``, ``remote`` talks to a service,
and ``submission`` turns arguments into descriptions of items. Modules that are loaded inside clusters import only the
standard library and Ray.
"""
