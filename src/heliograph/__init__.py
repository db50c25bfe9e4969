"""Heliograph, a message broker: one engine, many doors."""

from heliograph.client.priority import (
    Priority,
    PriorityDeadLetter,
    PriorityMessage,
    PriorityPubSub,
    PrioritySubscription,
)

__version__ = "0.1.0"

__all__ = [
    "Priority",
    "PriorityDeadLetter",
    "PriorityMessage",
    "PriorityPubSub",
    "PrioritySubscription",
    "__version__",
]
