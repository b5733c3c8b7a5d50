"""Users' own modules: which of them a function needs, and where they lie."""
