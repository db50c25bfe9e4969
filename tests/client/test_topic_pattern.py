"""Topic names and patterns alone: the rules of AMQP's topic exchange."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from heliograph.client.topic_pattern import check_pattern, check_topic, is_pattern, matches
from heliograph.errors import InvalidArgument


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["orders.new", "order", "new.orders"]),
        ("orders.*", ["orders.new", "orders.paid"], ["orders", "orders.new.eu", "other.new"]),
        ("orders.#", ["orders", "orders.new", "orders.new.eu"], ["order", "x.orders", "ordersx"]),
        ("*", ["orders"], ["orders.new"]),
        ("#", ["orders", "orders.new.eu"], []),
        ("*.new", ["orders.new"], ["new", "a.b.new"]),
        ("#.new", ["new", "orders.new", "a.b.new"], ["new.a"]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "z", "a.z.b"]),
        ("#.a.#", ["a", "x.a", "a.y", "x.a.y"], ["x", "x.y"]),
        ("*.#", ["a", "a.b"], []),
        ("*.*.#", ["a.b", "a.b.c"], ["a"]),
        ("lazy.#.*", ["lazy.dog", "lazy.a.b"], ["lazy"]),
        ("a.b+", ["a.b+"], ["a.bb"]),
    ],
)
def test_star_is_one_word_and_hash_any_number(pattern: str, matching: list[str], others: list[str]) -> None:
    assert [topic for topic in matching + others if matches(pattern, topic)] == matching


WORDS = st.sampled_from(["a", "b", "c"])


@given(
    st.lists(st.one_of(WORDS, st.sampled_from(["*", "#"])), min_size=1, max_size=6),
    st.lists(WORDS, min_size=1, max_size=6),
)
def test_matching_is_that_of_the_equivalent_regular_expression(pattern: list[str], topic: list[str]) -> None:
    parts = {"*": r"\w+\.", "#": r"(?:\w+\.)*"}
    expression = "".join(parts.get(word, word + r"\.") for word in pattern)
    expected = re.fullmatch(expression, ".".join(topic) + ".") is not None
    assert matches(".".join(pattern), ".".join(topic)) is expected


def test_many_wildcards_are_matched_in_little_time() -> None:
    assert not matches(".".join("#a" * 60).replace("#a", "#.a"), ".".join("a" * 60) + ".b")


@pytest.mark.parametrize("name", ["orders", "orders.new", "a b.ü", "x/y", "a-b_c"])
def test_ordinary_names_are_topics_and_can_be_subscribed_to(name: str) -> None:
    assert (check_topic(name), check_pattern(name), is_pattern(name)) == (name, name, False)


@pytest.mark.parametrize("name", ["*", "#", "orders.*", "orders.#", "*.new.#"])
def test_nothing_is_published_to_a_pattern(name: str) -> None:
    assert is_pattern(check_pattern(name))
    with pytest.raises(InvalidArgument, match="not to a pattern"):
        check_topic(name)


@pytest.mark.parametrize(
    "name", [None, 7, b"orders", ["orders"], "", ".", "a..b", ".a", "a.", "x" * 256, "ü" * 128, "\ud800"]
)
def test_what_is_no_name_is_refused(name: object) -> None:
    for check in (check_topic, check_pattern):
        with pytest.raises(InvalidArgument):
            check(name)


@pytest.mark.parametrize("name", ["order*", "a.b#", "**", "c#.d"])
def test_a_wildcard_inside_a_word_is_a_mistake(name: str) -> None:
    with pytest.raises(InvalidArgument, match="whole words"):
        check_pattern(name)
    with pytest.raises(InvalidArgument):
        check_topic(name)
