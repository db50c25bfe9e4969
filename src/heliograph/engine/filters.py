"""The filter of a Pub/Sub subscription: which messages it takes, by their attributes (pubsub-protocol.md 1.12).

    filter    = term { "AND" term } | term { "OR" term }          both at one level only with parentheses
    term      = [ "NOT" | "-" ] ( "(" filter ")" | condition )
    condition = "attributes" ":" key
              | "attributes" "." key ( "=" | "!=" ) string
              | "hasPrefix" "(" "attributes" "." key "," string ")"
    key       = string, or letters, digits, "_" and "-"
    string    = in double quotes, with C's escapes

Upper and lower case differ. A filter that cannot be read is refused, never taken for one that lets everything pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from heliograph.engine.limits import FILTER_BYTES_MAX
from heliograph.errors import InvalidArgument

Test = Callable[[Mapping[str, str]], bool]

# Filters as long as they may be can nest deeper, but nobody writes them, and each level takes some of Python's stack.
_DEPTH_MAX = 64

_SPACE = " \t\r\n"
_TOKEN = re.compile(
    r'[ \t\r\n]*(?:(?P<word>[A-Za-z0-9_][A-Za-z0-9_-]*)|(?P<string>")|(?P<sign>!=|[-():.,=])|(?P<end>\Z))'
)
_PLAIN = re.compile(r'[^"\\]+')
_CODE = re.compile(r"[xX](?P<x>[0-9A-Fa-f]{2})|u(?P<u>[0-9A-Fa-f]{4})|U(?P<U>[0-9A-Fa-f]{8})|(?P<o>[0-3][0-7]{2})")
_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "?": "?",
    '"': '"',
    "'": "'",
    "`": "`",
}
_KEYWORDS = ("AND", "OR", "NOT")


class Filter:
    """A filter that was read.

    Args:
        text: as it was written.
        test: from a message's attributes to whether it passes.
    """

    __slots__ = ("matches", "text")

    def __init__(self, text: str, test: Test) -> None:
        self.text = text
        self.matches = test


def parse_filter(text: str) -> Filter:
    """Read a filter.

    Raises:
        InvalidArgument: it is no filter, with the position (from 1) where it stops being one; or it is too long.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("The filter is not valid Unicode.") from None
    if size > FILTER_BYTES_MAX:
        raise InvalidArgument(f"The filter is longer than {FILTER_BYTES_MAX} bytes: it has {size}.")
    return Filter(text, _Parser(text).parse())


class _Parser:
    """Recursive descent, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0  # behind the token
        self._start = 0  # of the token
        self._kind = self._token = ""
        self._advance()

    def parse(self) -> Test:
        test = self._filter(0)
        if self._kind != "end":
            self._fail("AND, OR or the end")
        return test

    # ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _advance(self) -> None:
        """To the next token; of a string its value."""
        found = _TOKEN.match(self._text, self._position)
        if found is None:
            rest = self._text[self._position :].lstrip(_SPACE)
            self._kind, self._token = "", rest[0]
            self._start = self._position = len(self._text) - len(rest)
            return
        self._kind = found.lastgroup or ""
        self._start, self._position = found.span(self._kind)
        self._token = found[self._kind]
        if self._kind == "string":
            self._token = self._string()

    def _string(self) -> str:
        """The value of the string whose opening quote was read."""
        parts: list[str] = []
        while True:
            if plain := _PLAIN.match(self._text, self._position):
                parts.append(plain[0])
                self._position = plain.end()
            following = self._text[self._position : self._position + 1]
            self._position += 1
            if following == '"':
                return "".join(parts)
            if not following:
                raise InvalidArgument(f"Invalid filter: the string at position {self._start + 1} has no closing quote.")
            parts.append(self._escaped())

    def _escaped(self) -> str:
        """What an escape stands for, of which the backslash was read."""
        character = self._text[self._position : self._position + 1]
        if character in _ESCAPES:
            self._position += 1
            return _ESCAPES[character]
        code = _CODE.match(self._text, self._position)
        if code is not None:
            value = int(code[code.lastgroup or 0], 8 if code.lastgroup == "o" else 16)
            if value < 0xD800 or 0xDFFF < value <= 0x10FFFF:
                self._position = code.end()
                return chr(value)
        raise InvalidArgument(f"Invalid filter: there is no such escape at position {self._position}.")

    def _fail(self, expected: str) -> NoReturn:
        found = "its end" if self._kind == "end" else repr(self._token)
        raise InvalidArgument(f"Invalid filter at position {self._start + 1}: expected {expected}, found {found}.")

    def _is(self, token: str) -> bool:
        return self._token == token and self._kind in ("word", "sign")

    def _expect(self, token: str) -> None:
        if not self._is(token):
            self._fail(token)
        self._advance()

    # ── grammar ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _filter(self, depth: int) -> Test:
        tests = [self._term(depth)]
        operator = self._token if self._is("AND") or self._is("OR") else ""
        while operator and self._is(operator):
            self._advance()
            tests.append(self._term(depth))
        if operator and (self._is("AND") or self._is("OR")):
            raise InvalidArgument(
                f"Invalid filter at position {self._start + 1}: AND and OR together need parentheses that say what "
                "belongs together."
            )
        if len(tests) == 1:
            return tests[0]
        if operator == "AND":
            return lambda attributes: all(test(attributes) for test in tests)
        return lambda attributes: any(test(attributes) for test in tests)

    def _term(self, depth: int) -> Test:
        negated = self._is("NOT") or self._is("-")
        if negated:
            self._advance()
        if self._is("("):
            if depth == _DEPTH_MAX:
                raise InvalidArgument(f"Invalid filter: it nests deeper than {_DEPTH_MAX} parentheses.")
            self._advance()
            test = self._filter(depth + 1)
            self._expect(")")
        else:
            test = self._condition()
        return (lambda attributes: not test(attributes)) if negated else test

    def _condition(self) -> Test:
        if self._is("hasPrefix"):
            return self._has_prefix()
        if not self._is("attributes"):
            self._fail("attributes or hasPrefix")
        self._advance()
        if self._is(":"):
            self._advance()
            return _present(self._key())
        self._expect(".")
        key = self._key()
        if not (self._is("=") or self._is("!=")):
            self._fail("= or !=")
        differs = self._token == "!="
        self._advance()
        value = self._value()
        return _differs(key, value) if differs else _equals(key, value)

    def _has_prefix(self) -> Test:
        self._advance()
        for token in ("(", "attributes", "."):
            self._expect(token)
        key = self._key()
        self._expect(",")
        prefix = self._value()
        self._expect(")")
        return _starts_with(key, prefix)

    def _key(self) -> str:
        if self._kind not in ("word", "string") or (self._kind == "word" and self._token in _KEYWORDS):
            self._fail("an attribute's key")
        return self._taken()

    def _value(self) -> str:
        if self._kind != "string":
            self._fail("a string in double quotes")
        return self._taken()

    def _taken(self) -> str:
        token = self._token
        self._advance()
        return token


def _present(key: str) -> Test:
    return lambda attributes: key in attributes


def _equals(key: str, value: str) -> Test:
    return lambda attributes: attributes.get(key) == value


def _differs(key: str, value: str) -> Test:
    return lambda attributes: attributes.get(key) != value  # true where the key is absent, too


def _starts_with(key: str, prefix: str) -> Test:
    return lambda attributes: key in attributes and attributes[key].startswith(prefix)
