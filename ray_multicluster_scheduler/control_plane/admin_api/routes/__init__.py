"""REST routes of the service, one module per resource; each declares its rule and its OpenAPI description.

Only ``http/app`` imports them. They parse with ``request_parsing``, describe themselves with ``schemas``, and act
through ``ServiceRuntime``. Start reading at ``items`` (submit, wait) or ``service`` (the simplest routes).
"""
