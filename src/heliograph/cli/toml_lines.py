"""Where in a TOML file something stands, so that a mistake is told with its line."""

from __future__ import annotations

import re

_ARRAY_TABLE = re.compile(r"\s*\[\[\s*([^\]]+?)\s*\]\]")
_TABLE = re.compile(r"\s*\[\s*([^\]]+?)\s*\]")
_SNAKE = re.compile(r"(?<=[a-z0-9])([A-Z])")


def line_of(text: str, table: str, index: int = 0, key: str = "") -> int:
    """The line of a key, or of the table where the key is not found.

    Args:
        text: of the file.
        table: its name: "server", "topics"; "" = what stands before the first.
        index: which of the tables of that name in an array, counted from 0.
        key: its name, or the way to it, `retryPolicy.minimumBackoff`; either spelling. "" = the table's own line.

    Returns:
        Counted from 1; 0 = neither was found.
    """
    name = key.rpartition(".")[2].partition("[")[0]
    wanted = {name, _SNAKE.sub(lambda match: f"_{match[1].lower()}", name)} - {""}
    is_key = re.compile(rf"(?:^|[\s{{,.])\"?(?:{'|'.join(map(re.escape, wanted))})\"?\s*=") if wanted else None
    current, count, found = "", -1, 0
    for number, line in enumerate(text.splitlines(), 1):
        header = _ARRAY_TABLE.match(line) or _TABLE.match(line)
        if header is not None:
            current = header[1]
            count += current == table
        is_within = current == table or current.startswith(f"{table}.")
        if not is_within or count not in (index, -1 if not table else index):
            continue
        if header is not None:
            found = found or number
            if wanted and current.rpartition(".")[2] in wanted and current != table:
                return number
        elif is_key is not None and is_key.search(line):
            return number
    return found
