"""Which of the messages that are published subscriptions with a filter take."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.engine.message import Message
from heliograph.engine.ranges import Run, to_runs
from heliograph.engine.subscription import Subscription

NO_MATCHES: dict[int, list[Run]] = {}


def matching(subscriptions: Sequence[Subscription], messages: Sequence[Message]) -> dict[int, list[Run]]:
    """Runs of the messages that each takes, by the subscription's number; those that take none are left out.

    Subscriptions may share a filter; it is looked at once.
    """
    by_filter: dict[str, list[Run]] = {}
    matched: dict[int, list[Run]] = {}
    for subscription in subscriptions:
        condition = subscription.filter
        assert condition is not None
        runs = by_filter.get(condition.text)
        if runs is None:
            passes = condition.matches
            runs = to_runs([message.sequence for message in messages if passes(message.attributes)])
            by_filter[condition.text] = runs
        if runs:
            matched[subscription.number] = runs
    return matched
