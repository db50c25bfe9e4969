"""Heliograph, a message broker: one engine, many doors."""

__version__ = "0.1.0"
