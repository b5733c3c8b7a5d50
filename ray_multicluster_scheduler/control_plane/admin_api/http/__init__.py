"""The HTTP layer of the service: the FastAPI app, ASGI middleware, problem documents, and the uvicorn server.

``serve.py`` and ``admin_api/__init__`` use it; ``routes`` use ``problems``. Start reading at ``app.create_app``, then
``middleware`` (what a request passes before a route) and ``http_server``.
"""
