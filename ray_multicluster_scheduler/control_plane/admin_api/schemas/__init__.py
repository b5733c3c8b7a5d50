"""What each route takes and answers, for the OpenAPI document. Nothing here is asked when a request comes."""
