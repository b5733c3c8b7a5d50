"""What each route takes and answers, as pydantic models from which the OpenAPI document is made.

Only the document uses them: bodies are parsed and checked by the routes, and answers are not validated when they are
sent. Start reading in api_model.py, then route_description.py; items.py, fleet.py and service.py hold the models and a
RouteDocs for each route. Imported by the routes and by the application.
"""
