"""What users' programs import. It stands on ``control_plane.runtime``; only ``cli`` may import it."""
