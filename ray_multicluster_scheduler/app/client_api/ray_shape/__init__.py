"""Ray's own words: ``@remote``, ``.options()``, ``init`` and the rest, so that programs port by their import."""
