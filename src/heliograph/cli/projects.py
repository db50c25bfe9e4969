"""Topics and subscriptions named by the environment, as wrappers of the official emulator do::

PUBSUB_PROJECT1=project,topic1,topic2:subscription1:subscription2
PUBSUB_PROJECT2=…
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from heliograph.cli.config import Entry
from heliograph.cli.failure import ExitCode, Failure


def entries_of_environment(environment: Mapping[str, str]) -> Iterator[Entry]:
    """What PUBSUB_PROJECT1, PUBSUB_PROJECT2 … ask for; the first number that is missing ends it.

    Raises:
        Failure: one of them is not of the form.
    """
    number = 1
    while value := environment.get(f"PUBSUB_PROJECT{number}", "").strip():
        yield from _entries(f"PUBSUB_PROJECT{number}", value)
        number += 1


def _entries(variable: str, value: str) -> Iterator[Entry]:
    project, *topics = (part.strip() for part in value.split(","))
    if not project or ":" in project or "/" in project:
        raise Failure(
            f"{variable}: it must begin with a project, then topics, each with its subscriptions: "
            f"project,topic1,topic2:subscription1:subscription2, not {value!r}",
            ExitCode.USAGE,
        )
    for part in topics:
        topic, *subscriptions = part.split(":")
        if not topic or not all(subscriptions):
            raise Failure(f"{variable}: a name is missing in {part!r}", ExitCode.USAGE)
        name = f"projects/{project}/topics/{topic}"
        yield Entry("topics", 0, variable, {"name": name})
        for subscription in subscriptions:
            document = {"name": f"projects/{project}/subscriptions/{subscription}", "topic": name}
            yield Entry("subscriptions", 0, variable, document)
