"""Pydantic models of requests and answers, from which the OpenAPI document is generated.

Only the document uses them: routes parse and check bodies themselves, and answers are not validated. Start reading in
api_model.py, then route_description.py; items.py, fleet.py and service.py hold the models and a RouteDocs for each
route. Imported by the routes and by the application.
"""
