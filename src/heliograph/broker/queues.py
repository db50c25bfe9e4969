"""Work queues by their own names, as their clients know them."""

from __future__ import annotations

from heliograph.errors import HeliographError, QueueFull, QueueNotFound, SubscriptionNotFound, TopicNotFound

QUEUE_PREFIX = "queues/"
"""A queue `tasks` is the topic and the subscription `queues/tasks`."""


def in_words_of_queues(error: HeliographError) -> HeliographError:
    """An error of the broker, with the queue's name as its clients know it."""
    if isinstance(error, TopicNotFound | SubscriptionNotFound):
        return QueueNotFound(error.name.removeprefix(QUEUE_PREFIX))
    if isinstance(error, QueueFull):
        return QueueFull(error.name.removeprefix(QUEUE_PREFIX), error.depth_max)
    return error
