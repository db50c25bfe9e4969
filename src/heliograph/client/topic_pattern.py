"""Topic names made of words, and patterns over them: as in AMQP's topic exchange, which RabbitMQ's users know.

A name is words between dots (`orders.eu.paid`). In a pattern the word `*` stands for exactly one word and `#` for any
number of them, none included. Both are wildcards as whole words only.
"""

from __future__ import annotations

from heliograph.errors import InvalidArgument

NAME_BYTES_MAX = 255  # of a topic or pattern, in UTF-8: AMQP's limit for a routing key
WILDCARDS = frozenset("*#")


def check_topic(name: object) -> str:
    """The name, if a message can be published to it.

    Raises:
        InvalidArgument: it is no string, is empty or too long, has an empty word, or a wildcard in it.
    """
    words = _words(name)
    if any(WILDCARDS & set(word) for word in words):
        raise InvalidArgument(f"A message is published to one topic, not to a pattern: {name!r}")
    return ".".join(words)


def check_pattern(name: object) -> str:
    """The name, if it can be subscribed to: a topic, or a pattern.

    Raises:
        InvalidArgument: as `check_topic`, except that whole words may be wildcards.
    """
    words = _words(name)
    for word in words:
        if len(word) > 1 and WILDCARDS & set(word):
            raise InvalidArgument(f"'*' and '#' stand for whole words between dots, not for a part of {word!r}")
    return ".".join(words)


def is_pattern(name: str) -> bool:
    """Whether a name that `check_pattern` let pass has wildcards."""
    return any(word in WILDCARDS for word in name.split("."))


def matches(pattern: str, topic: str) -> bool:
    """Whether `topic` is one of those that `pattern` stands for. Linear in the words of both for each wildcard."""
    words = topic.split(".")
    reached = {0}  # how many words of the topic the pattern so far can stand for
    for part in pattern.split("."):
        if part == "#":
            reached = set(range(min(reached), len(words) + 1))
        else:
            reached = {count + 1 for count in reached if count < len(words) and part in ("*", words[count])}
        if not reached:
            return False
    return len(words) in reached


def _words(name: object) -> list[str]:
    if not isinstance(name, str):
        raise InvalidArgument(f"A topic's name is a string, not {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"A topic's name is text that UTF-8 can write, not {name!r}") from None
    if size > NAME_BYTES_MAX:
        raise InvalidArgument(f"A topic's name has at most {NAME_BYTES_MAX} bytes, not {size}")
    words = name.split(".")
    if not all(words):
        raise InvalidArgument(f"A topic's name is words between dots, none of them empty, not {name!r}")
    return words
