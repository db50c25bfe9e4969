"""Listeners, as the specs' examples use them: `subscription.on("message", callback)`.

A listener may be a plain or an async function. Called where events happen often, so who listens is one tuple per event,
and an object without listeners has no table at all.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Self, TypeVar, overload

from heliograph.errors import InvalidArgument

_log = logging.getLogger("heliograph")

Listener = Callable[..., Any]
L = TypeVar("L", bound=Listener)

_running: set[asyncio.Future[Any]] = set()  # async listeners at work: the loop itself would not keep them


class _Once:
    """A listener that goes with its first event."""

    __slots__ = ("emitter", "event", "listener")

    def __init__(self, emitter: Emitter, event: str, listener: Listener) -> None:
        self.emitter, self.event, self.listener = emitter, event, listener

    def __call__(self, *args: Any) -> Any:
        self.emitter.remove_listener(self.event, self.listener)
        return self.listener(*args)


class Emitter:
    """Something that tells its listeners of events. A subclass says which events it has."""

    __slots__ = ("_listeners",)
    EVENTS: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._listeners: dict[str, tuple[Listener, ...]] | None = None

    @overload
    def on(self, event: str) -> Callable[[L], L]: ...

    @overload
    def on(self, event: str, listener: Listener) -> Self: ...

    def on(self, event: str, listener: Listener | None = None) -> Any:
        """Call `listener` at every such event, from now on. Without a listener it is a decorator.

        Args:
            event: one of `EVENTS`.
            listener: a plain or async function, or any other callable.

        Returns:
            The object itself, so that calls can be chained; as a decorator, the function.

        Raises:
            InvalidArgument: there is no such event, or the listener cannot be called.
        """
        self._check_event(event)
        if listener is None:
            return functools.partial(self._decorate, event, False)
        self._add(event, listener, once=False)
        return self

    @overload
    def once(self, event: str) -> Callable[[L], L]: ...

    @overload
    def once(self, event: str, listener: Listener) -> Self: ...

    def once(self, event: str, listener: Listener | None = None) -> Any:
        """As `on`, for the next such event only."""
        self._check_event(event)
        if listener is None:
            return functools.partial(self._decorate, event, True)
        self._add(event, listener, once=True)
        return self

    def remove_listener(self, event: str, listener: Listener) -> Self:
        """Do not call `listener` any more. Nothing happens if it was not there.

        Raises:
            InvalidArgument: there is no such event.
        """
        self._check_event(event)
        left = list(self.listeners(event))
        for index, other in enumerate(left):
            if listener in (other, getattr(other, "listener", other)):
                del left[index]
                self._keep(event, tuple(left))
                break
        return self

    def remove_all_listeners(self, event: str | None = None) -> Self:
        """Call nobody any more, at `event` or at any.

        Raises:
            InvalidArgument: there is no such event.
        """
        if event is not None:
            self._check_event(event)
            self._keep(event, ())
        else:
            self._listeners = None
        return self

    def listeners(self, event: str) -> tuple[Listener, ...]:
        """Who is called at `event`, in that order."""
        return self._listeners.get(event, ()) if self._listeners is not None else ()

    def listener_count(self, event: str) -> int:
        """How many are called at `event`."""
        return len(self.listeners(event))

    def emit(self, event: str, *args: Any) -> bool:
        """Call everybody that listens to `event`. A listener that fails is logged and hinders nobody.

        Returns:
            Whether anybody listens.
        """
        listeners = self.listeners(event)
        for listener in listeners:
            try:
                result = listener(*args)
                if inspect.isawaitable(result):
                    task = asyncio.ensure_future(_logged(event, result))
                    _running.add(task)
                    task.add_done_callback(_running.discard)
            except Exception:
                _log.exception("a listener to %r failed", event)
        return bool(listeners)

    def _listening(self, event: str) -> None:
        """Somebody new listens to `event`."""

    def _decorate(self, event: str, once: bool, listener: L) -> L:
        self._add(event, listener, once=once)
        return listener

    def _add(self, event: str, listener: Listener, *, once: bool) -> None:
        if not callable(listener):
            raise InvalidArgument(f"A listener must be callable, not {type(listener).__name__}")
        self._keep(event, (*self.listeners(event), _Once(self, event, listener) if once else listener))
        self._listening(event)

    def _keep(self, event: str, listeners: tuple[Listener, ...]) -> None:
        if self._listeners is None:
            self._listeners = {}
        self._listeners[event] = listeners

    def _check_event(self, event: str) -> None:
        if event not in self.EVENTS:
            raise InvalidArgument(f"There is no event {event!r}; there are {', '.join(self.EVENTS)}")


async def _logged(event: str, result: Awaitable[Any]) -> None:
    try:
        await result
    except Exception:
        _log.exception("a listener to %r failed", event)


__all__ = ["Emitter", "Listener"]
