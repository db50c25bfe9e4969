"""The bounds of the Pub/Sub profile (protocol 1.18): those that hold for this door alone. What holds for every door
is in `heliograph.engine.limits`."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from heliograph.errors import InvalidArgument

DAY_SECONDS = 86_400

PUBLISH_REQUEST_BYTES_MAX = 10_000_000
PUBLISH_PAYLOAD_BYTES_MAX = 10_485_760  # beyond it the real service answers with another text
PUBLISH_MESSAGES_MAX = 1_000
ACKNOWLEDGE_REQUEST_BYTES_MAX = 512 * 1024  # acknowledgements and deadlines alike
PULL_MESSAGES_MAX = 1_000  # the real service gives no more at once, whatever is asked
RESPONSE_BYTES_MAX = 4_000_000  # official clients under PUBSUB_EMULATOR_HOST keep gRPC's 4 MiB receive limit
PULL_BYTES = 3_700_000  # what is leased for one response: room for ids and tags; what still does not fit goes back
PAGE_SIZE_MAX = 1_000
ACK_DEADLINE_SECONDS = (10, 600)
RETENTION_SECONDS = (600, 31 * DAY_SECONDS)
EXPIRATION_SECONDS_MIN = DAY_SECONDS
MAX_DELIVERY_ATTEMPTS = (5, 100)
BACKOFF_SECONDS = (0, 600)
TOPICS_MAX = 10_000  # of a project; likewise the next two
SUBSCRIPTIONS_MAX = 10_000
SNAPSHOTS_MAX = 5_000
TOPIC_SUBSCRIPTIONS_MAX = 10_000
LABELS_MAX = 64
LABEL_CHARACTERS_MAX = 63


def check_ack_deadline(seconds: int, bounds: tuple[int, int] = ACK_DEADLINE_SECONDS) -> None:
    """Of a subscription or a stream (1.5.2).

    Raises:
        InvalidArgument: outside `bounds`.
    """
    low, high = bounds
    if not low <= seconds <= high:
        raise InvalidArgument(
            f"Invalid ack deadline given (ack_deadline={seconds}). The ack deadline must be between {low} and {high} "
            "seconds."
        )


def check_modified_ack_deadline(seconds: int) -> None:
    """Of ModifyAckDeadline (1.6.4).

    Raises:
        InvalidArgument: outside 0-600 seconds.
    """
    high = ACK_DEADLINE_SECONDS[1]
    if not 0 <= seconds <= high:
        raise InvalidArgument(
            f"Invalid ack deadline given (ack_deadline={seconds}). The ack deadline must be between 0 and {high} "
            "seconds."
        )


def check_between(what: str, value: int, bounds: tuple[int, int]) -> None:
    """A number within its bounds.

    Raises:
        InvalidArgument: in the words of the real service (1.4.2).
    """
    low, high = bounds
    if value < low:
        raise InvalidArgument(
            f"The value for {what} is too small. You passed {value} in the request, but the minimum value is {low}."
        )
    if value > high:
        raise InvalidArgument(
            f"The value for {what} is too large. You passed {value} in the request, but the maximum value is {high}."
        )


def check_request_bytes(size: int, maximum: int) -> None:
    """Size of a serialized request.

    Raises:
        InvalidArgument: above `maximum`.
    """
    if size > maximum:
        raise InvalidArgument(
            f"The value for request_size is too large. You passed {size} in the request, but the maximum value is "
            f"{maximum}."
        )


def check_labels(labels: Mapping[str, str]) -> None:
    """Labels of a resource (1.3.3).

    Raises:
        InvalidArgument: too many, too long, or a character that labels do not have.
    """
    if len(labels) > LABELS_MAX:
        raise InvalidArgument(f"A resource has at most {LABELS_MAX} labels, not {len(labels)}.")
    for key, value in labels.items():
        starts_well = key and unicodedata.category(key[0]) in ("Ll", "Lo")
        if not starts_well or not _is_label_text(key) or not _is_label_text(value):
            raise InvalidArgument(
                f"Invalid label ({key}={value}): keys start with a lower-case letter; keys and values have lower-case "
                f"letters, digits, _ and - only, and at most {LABEL_CHARACTERS_MAX} characters."
            )


def _is_label_text(text: str) -> bool:
    return len(text) <= LABEL_CHARACTERS_MAX and all(
        character in "_-" or unicodedata.category(character) in ("Ll", "Lo", "Nd", "Nl", "No") for character in text
    )
