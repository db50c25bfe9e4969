"""The options of subscriptions, streams and publishers, as specs 000 and 001 name them.

Wherever one of these is wanted, a mapping is as good, and keyword arguments too, in the specs' spelling (`maxMessages`)
or Python's (`max_messages`). Durations are plain numbers of seconds. A wrong value raises `InvalidArgument` (code 3)
when the options are made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from heliograph.client.arguments import (
    BYTES_MAX,
    count_of,
    flag_of,
    name_of,
    named,
    nanoseconds,
    number_of,
    seconds_of,
)
from heliograph.engine.dead_letter import DeadLetterPolicy as DeadLetterSettings
from heliograph.engine.limits import ACK_DEADLINE_SECONDS_MAX, MIB
from heliograph.engine.retry import RetryPolicy as RetrySettings
from heliograph.engine.settings import SECOND_NS, Capacity, SubscriptionSettings
from heliograph.errors import InvalidArgument

CAPACITY = Capacity(messages=10_000, bytes=100 * MIB)  # of a subscription in process: spec 000, BR-022
SUBSCRIPTION_ACK_DEADLINE_SECONDS_MIN = 10  # spec 000, BR-008
STREAM_ACK_DEADLINE_SECONDS_MIN = 1  # spec 001's acceptance criteria use it
STREAM_ACK_DEADLINE_SECONDS = 60  # default of spec 001
BACKOFF_SECONDS_MAX = 600
RETENTION_SECONDS = 7 * 86_400  # spec 000, performance considerations
RETENTION_SECONDS_MIN = 600  # as over Pub/Sub
RETENTION_SECONDS_MAX = 31 * 86_400
DELIVERY_ATTEMPTS = 5
BATCH_MILLISECONDS_MAX = 60_000
STREAMS_MAX = 1_000

T = TypeVar("T", bound="_Options")


class _Options:
    """What all options share: how they are built from what a caller passes."""

    __slots__ = ()
    ALIASES: ClassVar[Mapping[str, str]] = {}  # other names, in snake case
    GROUPS: ClassVar[frozenset[str]] = frozenset()  # mappings whose entries belong here as well

    @classmethod
    def build(cls: type[T], options: object, more: Mapping[str, Any] | None = None, over: T | None = None) -> T:
        """Options from an object of this class, a mapping or None, with keyword arguments on top of it.

        Args:
            options: what the caller passed.
            more: keyword arguments.
            over: options that are to be changed; None = the defaults.

        Raises:
            InvalidArgument: no such option, or a value that an option cannot have.
        """
        base = over
        changes: dict[str, Any] = {}
        if isinstance(options, cls):
            base = options
        elif isinstance(options, Mapping):
            changes = cls._named(options)
        elif options is not None:
            raise InvalidArgument(f"{cls.__name__} or a mapping is wanted, not {type(options).__name__}")
        if more:
            changes |= cls._named(more)
        if base is None:
            return cls(**changes) if changes else _default(cls)
        return dataclasses.replace(base, **changes) if changes else base  # type: ignore[type-var]  # all are dataclasses

    @classmethod
    def _named(cls, values: Mapping[Any, Any]) -> dict[str, Any]:
        known = frozenset(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]  # as above
        flat = dict(values)
        for group in cls.GROUPS & flat.keys():
            entries = flat.pop(group)
            if not isinstance(entries, Mapping):
                raise InvalidArgument(f"{group} must be a mapping, not {type(entries).__name__}")
            flat |= entries
        return named(flat, known, cls.__name__, cls.ALIASES)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


_defaults: dict[type, Any] = {}


def _default(cls: type[T]) -> T:
    """One object serves all who want the defaults."""
    options: T | None = _defaults.get(cls)
    if options is None:
        options = _defaults[cls] = cls()
    return options


def _unchecked(cls: type[T], **values: object) -> T:
    """Options of what a broker holds already, whatever another door allowed there."""
    options = object.__new__(cls)
    for name, value in values.items():
        options._set(name, value)
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowControlOptions(_Options):
    """How much may be outstanding: delivered, and neither acknowledged nor given back (spec 001, BR-002 to BR-004).

    Args:
        max_messages: so many messages.
        max_bytes: so many bytes of data, attributes and ordering keys.
        allow_excess_messages: a pull that begins below the limits may end above them.
    """

    max_messages: int = 1000
    max_bytes: int = 100 * MIB
    allow_excess_messages: bool = False

    def __post_init__(self) -> None:
        count_of(self.max_messages, "max_messages")
        count_of(self.max_bytes, "max_bytes", maximum=BYTES_MAX)
        flag_of(self.allow_excess_messages, "allow_excess_messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy(_Options):
    """How long a message waits after a failed delivery (spec 000, BR-015):
    min(minimum_backoff · 2^(attempt-1), maximum_backoff).

    Args:
        minimum_backoff: seconds, 0 to 600.
        maximum_backoff: seconds, 0 to 600, not less than the minimum.
    """

    minimum_backoff: float = 10
    maximum_backoff: float = 600

    def __post_init__(self) -> None:
        seconds_of(self.minimum_backoff, "Minimum backoff", 0, BACKOFF_SECONDS_MAX)
        seconds_of(self.maximum_backoff, "Maximum backoff", 0, BACKOFF_SECONDS_MAX)
        if self.minimum_backoff > self.maximum_backoff:
            raise InvalidArgument("Minimum backoff must not exceed maximum backoff")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPolicy(_Options):
    """Where a message goes that cannot be processed (spec 000, BR-016).

    Args:
        dead_letter_topic: the name of a topic. While there is none of that name, dead letters wait for it.
        max_delivery_attempts: after so many deliveries, at least 1.
    """

    dead_letter_topic: str
    max_delivery_attempts: int = DELIVERY_ATTEMPTS

    def __post_init__(self) -> None:
        name_of(self.dead_letter_topic, "Dead letter topic")
        count_of(self.max_delivery_attempts, "max_delivery_attempts")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingOptions(_Options):
    """How a stream pulls (spec 001).

    Args:
        max_streams: how many pulls may be under way at a time (BR-010).
        high_water_mark: how many messages may wait in the stream for their callback when it pulls more; 0 = none.
    """

    max_streams: int = 5
    high_water_mark: int = 0

    def __post_init__(self) -> None:
        count_of(self.max_streams, "max_streams", maximum=STREAMS_MAX)
        count_of(self.high_water_mark, "high_water_mark", minimum=0)


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class SubscriptionOptions(_Options):
    """How a subscription behaves, and how its messages are streamed.

    Args:
        ack_deadline_seconds: how long a delivery is leased where nothing else is said: 10 to 600, default 10.
        enable_message_ordering: one outstanding message per ordering key, in publish order (spec 000, BR-010).
            `message_ordering` is another name for it.
        enable_exactly_once_delivery: an acknowledgement that came too late says so (spec 002, BR-010).
        flow_control: see `FlowControlOptions`. On a `MessageQueue` it bounds all pulls of the subscription together and
            None means no bound; in a `Subscription` it bounds what that object has delivered, and None means the
            defaults.
        retry_policy: None = redelivery at once.
        dead_letter_policy: None = redelivery without end.
        message_retention_duration: seconds that an unacknowledged message is kept, 10 minutes to 31 days, default 7
            days.
        ack_deadline: how long a stream leases what it delivers: 1 to 600 seconds; None = 60 (spec 001).
        streaming_options: see `StreamingOptions`.
    """

    ALIASES: ClassVar[Mapping[str, str]] = {"message_ordering": "enable_message_ordering"}

    ack_deadline_seconds: float
    enable_message_ordering: bool
    enable_exactly_once_delivery: bool
    flow_control: FlowControlOptions | None
    retry_policy: RetryPolicy | None
    dead_letter_policy: DeadLetterPolicy | None
    message_retention_duration: float
    ack_deadline: float | None
    streaming_options: StreamingOptions

    def __init__(
        self,
        *,
        ack_deadline_seconds: float = SUBSCRIPTION_ACK_DEADLINE_SECONDS_MIN,
        enable_message_ordering: bool = False,
        enable_exactly_once_delivery: bool = False,
        flow_control: FlowControlOptions | Mapping[str, Any] | None = None,
        retry_policy: RetryPolicy | Mapping[str, Any] | None = None,
        dead_letter_policy: DeadLetterPolicy | Mapping[str, Any] | None = None,
        message_retention_duration: float = RETENTION_SECONDS,
        ack_deadline: float | None = None,
        streaming_options: StreamingOptions | Mapping[str, Any] | None = None,
        message_ordering: bool | None = None,
    ) -> None:
        ordering = enable_message_ordering if message_ordering is None else message_ordering
        subscription_ack_deadline(ack_deadline_seconds)
        seconds_of(
            message_retention_duration, "Message retention duration", RETENTION_SECONDS_MIN, RETENTION_SECONDS_MAX
        )
        if ack_deadline is not None:
            stream_ack_deadline(ack_deadline)
        self._set("ack_deadline_seconds", ack_deadline_seconds)
        self._set("enable_message_ordering", flag_of(ordering, "enable_message_ordering"))
        self._set("enable_exactly_once_delivery", flag_of(enable_exactly_once_delivery, "enable_exactly_once_delivery"))
        self._set("flow_control", None if flow_control is None else FlowControlOptions.build(flow_control))
        self._set("retry_policy", None if retry_policy is None else RetryPolicy.build(retry_policy))
        self._set("dead_letter_policy", _dead_letter_policy(dead_letter_policy))
        self._set("message_retention_duration", message_retention_duration)
        self._set("ack_deadline", ack_deadline)
        self._set("streaming_options", StreamingOptions.build(streaming_options))

    @property
    def message_ordering(self) -> bool:
        """The same as `enable_message_ordering`."""
        return self.enable_message_ordering

    def for_stream(self) -> SubscriberOptions:
        """What of it concerns a stream."""
        return _for_stream(self)


def _dead_letter_policy(value: object) -> DeadLetterPolicy | None:
    if value is None:
        return None
    if isinstance(value, Mapping) and not {"dead_letter_topic", "deadLetterTopic"} & value.keys():
        raise InvalidArgument("DeadLetterPolicy wants a dead_letter_topic")
    return DeadLetterPolicy.build(value)


def subscription_ack_deadline(value: object) -> float:
    """The ack deadline of a subscription (spec 000, BR-008), in seconds."""
    return seconds_of(value, "Ack deadline", SUBSCRIPTION_ACK_DEADLINE_SECONDS_MIN, ACK_DEADLINE_SECONDS_MAX)


def stream_ack_deadline(value: object) -> float:
    """The ack deadline of a stream (spec 001, BR-005), in seconds."""
    return seconds_of(value, "Ack deadline", STREAM_ACK_DEADLINE_SECONDS_MIN, ACK_DEADLINE_SECONDS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberOptions(_Options):
    """How a `MessageStream` delivers (spec 001).

    Args:
        flow_control: see `FlowControlOptions`.
        ack_deadline: how long a delivery is leased, 1 to 600 seconds.
        message_ordering: the subscription must have been created with ordering; a stream cannot add it.
        streaming_options: see `StreamingOptions`.
    """

    ALIASES: ClassVar[Mapping[str, str]] = {"enable_message_ordering": "message_ordering"}

    flow_control: FlowControlOptions = FlowControlOptions()
    ack_deadline: float = STREAM_ACK_DEADLINE_SECONDS
    message_ordering: bool = False
    streaming_options: StreamingOptions = StreamingOptions()

    def __post_init__(self) -> None:
        self._set("flow_control", FlowControlOptions.build(self.flow_control))
        stream_ack_deadline(self.ack_deadline)
        flag_of(self.message_ordering, "message_ordering")
        self._set("streaming_options", StreamingOptions.build(self.streaming_options))


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions(_Options):
    """How a topic's publisher gathers messages into batches. A batch is sent when one of these is reached.

    Args:
        max_messages: so many messages.
        max_bytes: so many bytes of data, attributes and ordering keys.
        max_milliseconds: so long after its first message. 0 = as soon as everything that is to run now has run: what is
            published at the same time shares a batch, and nothing waits.
    """

    GROUPS: ClassVar[frozenset[str]] = frozenset({"batching"})

    max_messages: int = 100
    max_bytes: int = MIB
    max_milliseconds: float = 0

    def __post_init__(self) -> None:
        count_of(self.max_messages, "max_messages")
        count_of(self.max_bytes, "max_bytes", maximum=BYTES_MAX)
        number_of(self.max_milliseconds, "max_milliseconds", 0, BATCH_MILLISECONDS_MAX, "milliseconds")


# ── options as the engine's settings, and back ──────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=64)
def _for_stream(options: SubscriptionOptions) -> SubscriberOptions:
    deadline = STREAM_ACK_DEADLINE_SECONDS if options.ack_deadline is None else options.ack_deadline
    return SubscriberOptions(
        flow_control=options.flow_control or FlowControlOptions(),
        ack_deadline=deadline,
        message_ordering=options.enable_message_ordering,
        streaming_options=options.streaming_options,
    )


def retry_settings(policy: RetryPolicy) -> RetrySettings:
    """The engine's form of a retry policy."""
    return RetrySettings(nanoseconds(policy.minimum_backoff), nanoseconds(policy.maximum_backoff))


@lru_cache(maxsize=64)  # ten thousand subscriptions of equal options share their settings
def settings_of(options: SubscriptionOptions, *, with_flow_control: bool) -> SubscriptionSettings:
    """The engine's settings for a subscription of these options."""
    flow_control, retry, dead_letter = options.flow_control, options.retry_policy, options.dead_letter_policy
    has_limits = with_flow_control and flow_control is not None
    return SubscriptionSettings(
        ack_deadline_ns=nanoseconds(options.ack_deadline_seconds),
        enable_message_ordering=options.enable_message_ordering,
        enable_exactly_once_delivery=options.enable_exactly_once_delivery,
        retry_policy=None if retry is None else retry_settings(retry),
        dead_letter_policy=None
        if dead_letter is None
        else DeadLetterSettings(dead_letter.dead_letter_topic, dead_letter.max_delivery_attempts),
        capacity=CAPACITY,
        outstanding_messages_max=flow_control.max_messages if has_limits and flow_control else 0,
        outstanding_bytes_max=flow_control.max_bytes if has_limits and flow_control else 0,
        message_retention_ns=nanoseconds(options.message_retention_duration),
    )


def options_of(settings: SubscriptionSettings) -> SubscriptionOptions:
    """The options that a subscription of these settings was made with, as far as the broker keeps them."""
    if settings == settings_of(_default(SubscriptionOptions), with_flow_control=True):
        return _default(SubscriptionOptions)
    retry, dead_letter = settings.retry_policy, settings.dead_letter_policy
    flow_control = retry_policy = dead_letter_policy = None
    if settings.outstanding_messages_max:
        flow_control = FlowControlOptions(
            max_messages=settings.outstanding_messages_max, max_bytes=settings.outstanding_bytes_max or BYTES_MAX
        )
    if retry is not None:
        retry_policy = _unchecked(
            RetryPolicy,
            minimum_backoff=_seconds(retry.minimum_backoff_ns),
            maximum_backoff=_seconds(retry.maximum_backoff_ns),
        )
    if dead_letter is not None and dead_letter.topic is not None:
        dead_letter_policy = _unchecked(
            DeadLetterPolicy,
            dead_letter_topic=dead_letter.topic,
            max_delivery_attempts=dead_letter.max_delivery_attempts,
        )
    return _unchecked(
        SubscriptionOptions,
        ack_deadline_seconds=_seconds(settings.ack_deadline_ns),
        enable_message_ordering=settings.enable_message_ordering,
        enable_exactly_once_delivery=settings.enable_exactly_once_delivery,
        flow_control=flow_control,
        retry_policy=retry_policy,
        dead_letter_policy=dead_letter_policy,
        message_retention_duration=_seconds(settings.message_retention_ns),
        ack_deadline=None,
        streaming_options=_default(StreamingOptions),
    )


def _seconds(duration_ns: int) -> float:
    """A whole number where it is one."""
    whole, rest = divmod(duration_ns, SECOND_NS)
    return duration_ns / SECOND_NS if rest else whole
