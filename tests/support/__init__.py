"""Doubles and helpers that several test folders share."""
