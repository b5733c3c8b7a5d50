"""`python -m ray_multicluster_scheduler` is `rmcs`."""

from __future__ import annotations

import sys

from ray_multicluster_scheduler.main import main

if __name__ == "__main__":
    sys.exit(main())
