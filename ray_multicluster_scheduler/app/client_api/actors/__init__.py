"""Actors, as a program outside of the clusters sees them: made, called, found again, ended."""
