"""The part of the API that mirrors Ray: ``remote``, ``.remote()``, ``.options()``, ``init`` and cluster queries.

Start reading in ``remote.py`` and ``ray_shape.py``. Clusters load these modules too, so they import only the standard
library and ``common`` at module level.
"""
