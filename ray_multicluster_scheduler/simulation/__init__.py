"""A fleet in virtual time; the same brain, no Ray."""
