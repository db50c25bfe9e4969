"""Sizes as people write and read them: `64MB`, `1.5GiB`, `4096`. KB, MB, … are powers of 1024, as everywhere here."""

from __future__ import annotations

import re

import typer

_UNITS = ("B", "KB", "MB", "GB", "TB")
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<prefix>[KMGT]?)(I?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """The number of bytes that `text` means.

    Raises:
        typer.BadParameter: it is not a size above zero.
    """
    found = _SIZE.fullmatch(text.strip())
    size_bytes = 0
    if found is not None:
        power = "KMGT".find(found["prefix"].upper()) + 1 if found["prefix"] else 0
        size_bytes = int(float(found["number"]) * 1024**power)
    if size_bytes <= 0:
        raise typer.BadParameter(f"{text!r} is not a size: write 64MB, 1GiB, or a number of bytes")
    return size_bytes


def show_size(size_bytes: int) -> str:
    """Short, to three digits: `512 B`, `1.25 MB`, `700 MB`."""
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 999.5 or unit == _UNITS[-1]:
            return f"{size:,.0f} {unit}" if size >= 99.95 or unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    raise AssertionError
