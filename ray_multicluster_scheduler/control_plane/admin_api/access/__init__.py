"""Access control of the service: tokens, roles and rules, browser sessions, ownership of items, and the audit log.

Only ``admin_api`` uses it, and ``cli`` for ``rmcs token``. Start reading at ``permissions`` (roles, rules, callers),
then ``access`` (the state of one service) and ``tokens``. ``http/middleware`` finds the caller of a request."""
