"""Updates by field mask (protocol 1.3.4, 1.5.11-1.5.13): the fields that the mask names are taken over from the body,
whether they are set there or not; the others stay. A mask with one wrong path changes nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from heliograph.errors import InvalidArgument


def merged(current: Any, body: Any, update_mask: Any, immutable: Collection[str]) -> Any:
    """A copy of `current` with what the mask names as it is in `body`.

    Args:
        current: the resource as it is.
        body: the resource in the request; a message of the same class.
        update_mask: a `google.protobuf.FieldMask`.
        immutable: the top-level fields that no update changes.

    Raises:
        InvalidArgument: the mask is empty, or names what is unknown or immutable.
    """
    kind = current.DESCRIPTOR.name
    if not update_mask.paths:
        raise InvalidArgument(
            f"The update_mask in the Update{kind}Request must be set, and must contain a non-empty paths list."
        )
    paths = [path.split(".") for path in update_mask.paths]
    for path in paths:
        _check(path, current.DESCRIPTOR, kind, immutable)
    result = type(current)()
    result.CopyFrom(current)
    for path in paths:
        _take(path, body, result)
    return result


def _check(path: list[str], descriptor: Any, kind: str, immutable: Collection[str]) -> None:
    begin = f"Invalid update_mask provided in the Update{kind}Request: "
    message = descriptor
    for place, name in enumerate(path):
        field = None if message is None else message.fields_by_name.get(name)
        if field is None:
            raise InvalidArgument(
                f"{begin}'{'.'.join(path)}' is not a known {kind} field. Note that field paths must be of the form "
                "'push_config' rather than 'pushConfig'."
            )
        if not place and name in immutable:
            raise InvalidArgument(f"{begin}the '{name}' field in the {kind} is not mutable.")
        message = None if field.is_repeated else field.message_type


def _take(path: list[str], source: Any, target: Any) -> None:
    *parents, name = path
    for parent in parents:
        if not source.HasField(parent) and not target.HasField(parent):
            return  # it is unset in both, and so is everything in it
        source, target = getattr(source, parent), getattr(target, parent)
    field = source.DESCRIPTOR.fields_by_name[name]
    target.ClearField(name)
    if field.is_repeated or field.message_type is not None:
        is_set = bool(getattr(source, name)) if field.is_repeated else source.HasField(name)
        if is_set:
            _copy(field, getattr(source, name), getattr(target, name))
    elif not field.has_presence or source.HasField(name):
        setattr(target, name, getattr(source, name))


def _copy(field: Any, source: Any, target: Any) -> None:
    if not field.is_repeated:
        target.CopyFrom(source)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        target.update(source)  # maps of scalars: there are no others in these resources
    else:
        target.extend(source)
