"""How strictly the Pub/Sub door keeps to what the real service accepts.

`STRICT` is the service itself; `LENIENT` (`heliograph serve --lenient`) also takes what tests that were written against
the official emulator do: short names, short deadlines, several ordering keys in one publish.
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.server.pubsub import limits, names


@dataclass(frozen=True, slots=True)
class Profile:
    """The bounds that differ between profiles, and that who serves may set.

    Args:
        lenient_names: an id is anything without a slash, and a project too (1.2.1).
        ack_deadline_seconds: bounds of a subscription's and a stream's deadline, both included (1.5.2, 1.7.1).
        mixed_ordering_keys: the messages of one publish may have several (1.4.6).
        topics_max, subscriptions_max, snapshots_max: of a project (1.18).
        topic_subscriptions_max: of a topic.
    """

    lenient_names: bool = False
    ack_deadline_seconds: tuple[int, int] = limits.ACK_DEADLINE_SECONDS
    mixed_ordering_keys: bool = False
    topics_max: int = limits.TOPICS_MAX
    subscriptions_max: int = limits.SUBSCRIPTIONS_MAX
    snapshots_max: int = limits.SNAPSHOTS_MAX
    topic_subscriptions_max: int = limits.TOPIC_SUBSCRIPTIONS_MAX

    def check_new_name(self, name: str, collection: str) -> None:
        """See `names.check_new`."""
        names.check_new(name, collection, lenient=self.lenient_names)

    def check_name(self, name: str, collection: str) -> None:
        """See `names.check`."""
        names.check(name, collection, lenient=self.lenient_names)

    def check_project(self, name: str) -> None:
        """See `names.check_project`."""
        names.check_project(name, lenient=self.lenient_names)

    def check_ack_deadline(self, seconds: int) -> None:
        """Of a subscription or a stream.

        Raises:
            InvalidArgument: outside the bounds.
        """
        limits.check_ack_deadline(seconds, self.ack_deadline_seconds)


STRICT = Profile()
LENIENT = Profile(lenient_names=True, ack_deadline_seconds=(1, 600), mixed_ordering_keys=True)
