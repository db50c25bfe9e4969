"""The filters' language (pubsub-protocol.md 1.12): what passes, what is no filter, and that nothing else can happen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.engine.filters import parse_filter
from heliograph.engine.limits import FILTER_BYTES_MAX
from heliograph.errors import InvalidArgument

MESSAGES: list[dict[str, str]] = [
    {},
    {"lang": "en"},
    {"lang": "english"},
    {"lang": "de"},
    {"lang": ""},
    {"lang": "en", "name": "com"},
    {"lang": "de", "name": "com"},
    {"name": "com"},
    {"name": "org"},
    {"iana.org/language_tag": "en"},
    {"LANG": "en"},
    {"lang": "EN", "name": "com", "event": "x"},
]
# filter: the numbers of the messages above that pass
TRUTH: dict[str, set[int]] = {
    "attributes:lang": {1, 2, 3, 4, 5, 6, 11},
    'attributes:"lang"': {1, 2, 3, 4, 5, 6, 11},
    'attributes:"iana.org/language_tag"': {9},
    'attributes.lang = "en"': {1, 5},
    'attributes.lang="en"': {1, 5},
    'attributes."lang" = "en"': {1, 5},
    'attributes.lang = ""': {4},
    'attributes.lang != "en"': {0, 2, 3, 4, 6, 7, 8, 9, 10, 11},
    'hasPrefix(attributes.lang, "en")': {1, 2, 5},
    'hasPrefix ( attributes . lang , "" )': {1, 2, 3, 4, 5, 6, 11},
    'hasPrefix(attributes."iana.org/language_tag", "e")': {9},
    "NOT attributes:lang": {0, 7, 8, 9, 10},
    "-attributes:lang": {0, 7, 8, 9, 10},
    'NOT attributes.lang != "en"': {1, 5},
    'NOT hasPrefix(attributes.lang, "en")': {0, 3, 4, 6, 7, 8, 9, 10, 11},
    "attributes:lang AND attributes:name": {5, 6, 11},
    "attributes:lang OR attributes:name": {1, 2, 3, 4, 5, 6, 7, 8, 11},
    "attributes:lang AND attributes:name AND attributes:event": {11},
    "attributes:lang AND NOT attributes:name": {1, 2, 3, 4},
    "attributes:lang AND -attributes:name": {1, 2, 3, 4},
    'attributes:name AND (attributes.lang = "en" OR attributes.lang = "de")': {5, 6},
    '(attributes:name AND attributes.lang = "en") OR attributes.lang = "de"': {3, 5, 6},
    "NOT (attributes:lang OR attributes:name)": {0, 9, 10},
    "((attributes:lang))": {1, 2, 3, 4, 5, 6, 11},
    "-(-(attributes:lang))": {1, 2, 3, 4, 5, 6, 11},
    "\t attributes:lang\n": {1, 2, 3, 4, 5, 6, 11},
    r'attributes.lang = "\x65\156"': {1, 5},
    r'attributes.lang = "\u0065n"': {1, 5},
    r'attributes.lang = "\U00000065n"': {1, 5},
}

# text: the position at which it stops being a filter
NO_FILTERS: dict[str, int] = {
    "": 1,
    "  ": 3,
    "attributes": 11,
    "attributes.": 12,
    "attributes:": 12,
    "attributes.lang": 16,
    'attributes.lang = "en': 19,
    "attributes.lang = en": 19,
    "attributes.lang = 'en'": 19,
    "attributes.lang = 5": 19,
    'attributes.lang > "5"': 17,
    'attributes.lang == "en"': 18,
    'attributes.lang =~ "e.*"': 18,
    'attributes:lang = "x"': 17,
    "attributes:iana.org": 16,
    "attributes:a/b": 13,
    "attributes:AND": 12,
    'data = "x"': 1,
    "Attributes:lang": 1,
    'hasprefix(attributes.lang, "en")': 1,
    'hasPrefix(attributes:lang, "en")': 21,
    "hasPrefix(attributes.lang)": 26,
    'hasPrefix(attributes.lang, "en"': 32,
    'hasSuffix(attributes.lang, "en")': 1,
    "attributes:a and attributes:b": 14,
    "attributes:a attributes:b": 14,
    "attributes:a AND": 17,
    "AND attributes:a": 1,
    "NOTattributes:a": 1,
    "NOT NOT attributes:a": 5,
    "attributes:a AND attributes:b OR attributes:c": 31,
    "attributes:a OR attributes:b AND attributes:c": 30,
    "attributes:a AND NOT attributes:b OR attributes:c": 35,
    "(attributes:a": 14,
    "attributes:a)": 13,
    "()": 2,
    r'attributes.a = "\q"': 17,
    r'attributes.a = "\ud800"': 17,
    r'attributes.a = "\400"': 17,
    "attributes:a;": 13,
}


@pytest.mark.parametrize("text", TRUTH)
def test_a_filter_lets_exactly_these_pass(text: str) -> None:
    matches = parse_filter(text).matches
    assert {number for number, attributes in enumerate(MESSAGES) if matches(attributes)} == TRUTH[text]


@pytest.mark.parametrize("text", NO_FILTERS)
def test_what_is_no_filter_is_refused_with_the_position(text: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"position {NO_FILTERS[text]}\b"):
        parse_filter(text)


def test_a_filter_has_at_most_256_bytes_not_characters() -> None:
    def of(letters: int, letter: str = "x") -> str:
        return f'attributes:"{letter * letters}"'

    longest = FILTER_BYTES_MAX - len(of(0))
    assert parse_filter(of(longest)).matches({"x" * longest: ""})
    for text in (of(longest + 1), of(longest // 2 + 1, "ü")):
        with pytest.raises(InvalidArgument, match="longer than 256 bytes"):
            parse_filter(text)


def test_parentheses_nest_as_deep_as_anyone_would_write_and_no_deeper() -> None:
    assert parse_filter("(" * 64 + "attributes:a" + ")" * 64).matches({"a": ""})
    for text in ("(" * 65 + "attributes:a" + ")" * 65, "(" * 256):
        with pytest.raises(InvalidArgument, match="nests deeper"):
            parse_filter(text)


words = st.sampled_from(
    ["attributes", "hasPrefix", "NOT", "-", "AND", "OR", "(", ")", ".", ":", ",", "=", "!=", '"a"', '"', "\\", "a", " "]
)


@given(st.one_of(st.lists(words, max_size=25).map(" ".join), st.lists(words, max_size=40).map("".join), st.text()))
def test_whatever_is_written_it_is_a_filter_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidArgument):
        assert parse_filter(text).matches({"a": "a"}) in (True, False)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        parse_filter("attributes:\ud800")


# ── filters that are written from what they mean ────────────────────────────────────────────────────────────────────

Written = tuple[str, Callable[[Mapping[str, str]], bool]]
texts = st.sampled_from(["", "a", "b", "AND", "a b", 'q"', "\\", "ü", "\n", "😀"])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _key(key: str) -> str:
    return key if key in ("a", "b") else _quoted(key)


def _condition(kind: str, key: str, value: str) -> Written:
    written = {
        "has": f"attributes:{_key(key)}",
        "=": f"attributes.{_key(key)}={_quoted(value)}",
        "!=": f"attributes.{_key(key)} != {_quoted(value)}",
        "prefix": f"hasPrefix(attributes.{_key(key)},{_quoted(value)})",
    }
    means: dict[str, Callable[[Mapping[str, str]], bool]] = {
        "has": lambda attributes: key in attributes,
        "=": lambda attributes: key in attributes and attributes[key] == value,
        "!=": lambda attributes: key not in attributes or attributes[key] != value,
        "prefix": lambda attributes: key in attributes and attributes[key][: len(value)] == value,
    }
    return written[kind], means[kind]


def _joined(operator: str, parts: list[Written]) -> Written:
    text = f" {operator} ".join(f"({part})" for part, _ in parts)
    if operator == "AND":
        return text, lambda attributes: not [1 for _, means in parts if not means(attributes)]
    return text, lambda attributes: bool([1 for _, means in parts if means(attributes)])


def _negated(sign: str, part: Written) -> Written:
    return f"{sign}({part[0]})", lambda attributes: not part[1](attributes)


conditions = st.builds(_condition, st.sampled_from(["has", "=", "!=", "prefix"]), texts, texts)
filters = st.recursive(
    conditions,
    lambda inner: st.one_of(
        st.builds(_joined, st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=3)),
        st.builds(_negated, st.sampled_from(["NOT ", "-", "NOT"]), inner),
    ),
    max_leaves=6,
)


@given(filters, st.lists(st.dictionaries(texts, texts, max_size=3), max_size=5))
def test_a_filter_means_what_it_was_written_for(written: Written, messages: list[dict[str, str]]) -> None:
    text, means = written
    if len(text.encode()) > FILTER_BYTES_MAX:
        return
    matches = parse_filter(text).matches
    assert [matches(attributes) for attributes in messages] == [means(attributes) for attributes in messages]
