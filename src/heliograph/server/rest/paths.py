"""Path templates of `google.api.http`: ``/v1/{topic=projects/*/topics/*}:publish`` (google/api/http.proto, "Path
template syntax")."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

_VARIABLE = re.compile(r"\{([a-z0-9_.]+)(?:=([^{}]*))?\}")


class Variable(NamedTuple):
    """A field that the path binds.

    Args:
        field: its path in the request, ``topic.name``.
        first, last: which segments are its value, both included.
    """

    field: str
    first: int
    last: int


class PathTemplate:
    """One template.

    Args:
        text: as written in the option.

    Raises:
        ValueError: it is not a template, or has `**`, of which Pub/Sub has none.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.variables: list[Variable] = []
        segments: list[str] = []
        rest, self.verb = self._split_verb(text)
        position = 0
        for match in [*_VARIABLE.finditer(rest), None]:
            literal = rest[position : match.start() if match else len(rest)]
            segments += [part for part in literal.split("/") if part]
            if match is None:
                break
            pattern = (match[2] or "*").split("/")
            self.variables.append(Variable(match[1], len(segments), len(segments) + len(pattern) - 1))
            segments += pattern
            position = match.end()
        self.segments = tuple(segments)
        if "**" in segments or any("{" in segment or "}" in segment for segment in segments):
            raise ValueError(f"not a path template that is supported: {text}")

    @staticmethod
    def _split_verb(text: str) -> tuple[str, str]:
        rest, colon, verb = text.rpartition(":")
        return (rest, verb) if colon and re.fullmatch(r"[A-Za-z]+", verb) else (text, "")

    def match(self, segments: list[str]) -> dict[str, str] | None:
        """The values of the variables by field, if `segments`, of the same number, match."""
        for wanted, given in zip(self.segments, segments, strict=True):
            if wanted != "*" and wanted != given:
                return None
        return {field: "/".join(segments[first : last + 1]) for field, first, last in self.variables}

    def expand(self, values: dict[str, str]) -> str:
        """The path with these values, by field; what `match` undoes."""
        segments = list(self.segments)
        for field, first, last in self.variables:
            segments[first : last + 1] = values[field].split("/")
        return "/" + "/".join(segments) + (f":{self.verb}" if self.verb else "")


class PathTable(Generic[T]):
    """Finds what a path means.

    Args:
        entries: HTTP method, template, and what it means.
    """

    def __init__(self, entries: Iterable[tuple[str, PathTemplate, T]]) -> None:
        self._entries: dict[tuple[str, int], dict[str, list[tuple[PathTemplate, T]]]] = defaultdict(dict)
        for http_method, template, meaning in entries:
            by_method = self._entries[template.verb, len(template.segments)]
            by_method.setdefault(http_method, []).append((template, meaning))

    def find(self, http_method: str, path: str) -> tuple[T, dict[str, str]] | None:
        """The meaning of a path and the values that it binds, by field.

        Args:
            http_method: upper case.
            path: decoded.
        """
        segments, by_method = self._candidates(path)
        return self._first(by_method.get(http_method, ()), segments)

    def http_methods(self, path: str) -> list[str]:
        """Those that a path takes; none if it means nothing."""
        segments, by_method = self._candidates(path)
        return sorted(name for name, entries in by_method.items() if self._first(entries, segments) is not None)

    def _candidates(self, path: str) -> tuple[list[str], dict[str, list[tuple[PathTemplate, T]]]]:
        segments = path.removeprefix("/").split("/")
        # a project may have a colon (`example.com:project`), the end of a path only before a verb
        segments[-1], _, verb = segments[-1].partition(":")
        if "" in segments:
            return segments, {}
        return segments, self._entries.get((verb, len(segments)), {})

    @staticmethod
    def _first(entries: Iterable[tuple[PathTemplate, T]], segments: list[str]) -> tuple[T, dict[str, str]] | None:
        for template, meaning in entries:
            values = template.match(segments)
            if values is not None:
                return meaning, values
        return None
