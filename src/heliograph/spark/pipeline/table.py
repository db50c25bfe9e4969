"""A directory of Parquet files that grows batch by batch, each batch once, whatever is killed and whenever.

Any Parquet reader understands it::

    DIRECTORY/topic=projects%2Fp%2Ftopics%2Ft/dt=2013-07-01/hr=12/000003-000000000001-000000020000-00000.zstd.parquet
    DIRECTORY/_commits/projects%2Fp%2Ftopics%2Ft/000003-000000000001-000000020000.json
    DIRECTORY/_staging/, DIRECTORY/_lock

A table has series, here one for each topic; a batch covers a range of positions of one series. The numbers in a file's
name are the series' number (a topic has another one after it was deleted and created again), and the first and last
position of the batch. So the commits are the checkpoint of the job that fills the table: a position and what was made
of it become durable in one step.

A batch is written under `_staging`, checked, and then one commit file names all its files: the moment at which they
belong to the table. Only then are they moved to their places, by renaming. What was killed before the commit leaves a
heap in `_staging` that the next batch removes; what was killed after it is moved on by whoever comes next. A commit may
replace others (compaction); their files are removed before its own are moved in, so that no row is ever seen twice.
Names that begin with `_` are invisible to Spark and to most readers. Needs a file system with atomic renames, which the
driver and all executors see.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec
import pyarrow.parquet as pq

from heliograph.errors import FailedPrecondition, Internal

COMMITS = "_commits"
STAGING = "_staging"
LOCK = "_lock"
READERS = "_readers"
NAME_BYTES_MAX = 240
"""Of a name in a path, quoted; 255 is what file systems take, with what stands before and behind it."""

SHOWN_CHARACTERS_MAX = 60
RETENTION = "_retention"
"""By series: the day before which a table has nothing any more, on purpose; under "" that of all series."""


class File(msgspec.Struct, frozen=True):
    """A file of a commit.

    Args:
        path: its place, relative to the table.
        staged: where it was written, relative to the table.
        rows: rows in it.
        bytes: its size.
    """

    path: str
    staged: str
    rows: int
    bytes: int


class Commit(msgspec.Struct, frozen=True):
    """What one batch added.

    Args:
        topic: the series.
        topic_number: its number; tells series of one name apart.
        first, last: the positions that the batch covers, inclusive, less what the broker had trimmed.
        files: all its files.
        generation: how often it was rewritten.
        replaces: names of the commits whose rows it has now.
        figures: what the job counted.
    """

    topic: str
    topic_number: int
    first: int
    last: int
    files: list[File]
    generation: int = 0
    replaces: list[str] = []
    figures: dict[str, int] = {}

    @property
    def rows(self) -> int:
        """Rows added."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Size of the files."""
        return sum(file.bytes for file in self.files)

    @property
    def name(self) -> str:
        """Unique in its series; grows with the positions."""
        return batch_name(self.topic_number, self.first, self.last, self.generation)


_FILE = re.compile(r"\d{6,}-\d{12,}-\d{12,}(-r\d+)?-\d{5,}\.zstd\.parquet")
_COMMIT = msgspec.json.Decoder(Commit)
_HORIZONS = msgspec.json.Decoder(dict[str, str])


class Table:
    """See the module.

    Args:
        directory: where it is; made when something is written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    @contextlib.contextmanager
    def changing(self, *, wait: bool = False) -> Iterator[None]:
        """Within the block no other process changes the table; the lock goes with the process.

        Raises:
            FailedPrecondition: another one does, and this one does not wait.
        """
        with self._locked(LOCK, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), "writing to"):
            yield

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Within the block no file of a commit goes; new ones may come."""
        return self._locked(READERS, fcntl.LOCK_SH, "rewriting")

    def rewriting(self) -> contextlib.AbstractContextManager[None]:
        """Within the block files may be removed. Raises: FailedPrecondition (the table is being read)."""
        return self._locked(READERS, fcntl.LOCK_EX | fcntl.LOCK_NB, "reading")

    @contextlib.contextmanager
    def _locked(self, name: str, kind: int, what: str) -> Iterator[None]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / name).open("a") as file:
            try:
                fcntl.flock(file, kind)
            except BlockingIOError:
                raise FailedPrecondition(f"Another run is {what} {self.directory}") from None
            yield

    def series(self) -> list[str]:
        """The names of all series that have a commit."""
        folders = (self.directory / COMMITS).glob("*/")
        return sorted(unquote(folder.name) for folder in folders if any(folder.glob("*.json")))

    def commits(self, series: str) -> list[Commit]:
        """The commits of a series that hold, oldest first. Raises: FailedPrecondition (one is damaged)."""
        commits = self._all_commits(series)
        replaced = {name for commit in commits for name in commit.replaces}
        return [commit for commit in commits if commit.name not in replaced]

    def next_position(self, series: str, number: int, first: int) -> int:
        """The position behind the last committed one of a series with that number; `first` if there is none."""
        ends = [commit.last + 1 for commit in self.commits(series) if commit.topic_number == number]
        return max(ends, default=first)

    def settle(self, series: str) -> list[Commit]:
        """Finish what was begun: afterwards all files of its commits are in their places, and nothing else of it is
        there. Within `changing`.

        Returns:
            What `commits` does.

        Raises:
            FailedPrecondition: the table is damaged.
        """
        commits = self._all_commits(series)
        by_name = {commit.name: commit for commit in commits}
        for name in {name for commit in commits for name in commit.replaces}:
            replaced = by_name.pop(name, None)
            if replaced is not None:
                self._remove(replaced)
        live = list(by_name.values())
        for file in (file for commit in live for file in commit.files):
            self._move(file)
        shutil.rmtree(self._staging(series), ignore_errors=True)
        return live

    def write(self, draft: Commit, write: Callable[[Path], None], check: Callable[[int], None]) -> Commit:
        """Write a batch and commit it. Within `changing`.

        Args:
            draft: the commit without files.
            write: writes Parquet files below the directory that it is given, which does not exist yet.
            check: is told how many rows these have, and raises if they are not right; nothing happened then.

        Raises:
            whatever `write` and `check` raise: nothing was committed.
        """
        staging = self._staging(draft.topic) / draft.name
        shutil.rmtree(staging, ignore_errors=True)
        write(staging)
        files = []
        for number, staged in enumerate(sorted(staging.rglob("*.parquet"))):
            _sync(staged)
            place = Path(f"topic={quoted(draft.topic)}", staged.parent.relative_to(staging))
            path = place / f"{draft.name}-{number:05d}.zstd.parquet"
            rows = pq.read_metadata(staged).num_rows
            files.append(File(str(path), str(staged.relative_to(self.directory)), rows, staged.stat().st_size))
        commit = msgspec.structs.replace(draft, files=files)
        check(commit.rows)
        self.put(commit)
        self.settle(draft.topic)
        return commit

    def put(self, commit: Commit) -> None:
        """From here on the commit holds, whatever happens. Within `changing`."""
        file = self._commit_file(commit)
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(commit))
        _sync(partial)
        partial.rename(file)
        _sync(file.parent)

    def shorten(self, commit: Commit, files: Iterable[File]) -> None:
        """Take these files out of a commit for good. Within `changing`."""
        going = list(files)
        self.put(msgspec.structs.replace(commit, files=[file for file in commit.files if file not in going]))
        for file in going:
            (self.directory / file.path).unlink(missing_ok=True)

    def clear(self, series: str) -> None:
        """Forget a series and its files. Within `changing`."""
        for commit in self._all_commits(series):
            self._remove(commit)

    def files(self, series: str, first: int = 0, last: int = 2**63, number: int | None = None) -> list[Path]:
        """The files of a series that may have rows of these positions, each in its place.

        Raises:
            FailedPrecondition: the table is damaged.
        """
        if any(not (self.directory / file.path).exists() for commit in self.commits(series) for file in commit.files):
            with self.changing(wait=True):
                self.settle(series)
        return [
            self.directory / file.path
            for commit in self.commits(series)
            if commit.first <= last and commit.last >= first and number in (None, commit.topic_number)
            for file in commit.files
        ]

    def horizon(self, series: str) -> str:
        """The day, such as `2013-07-01`, before which rows of a series are gone on purpose; "" = none are. Raises:
        FailedPrecondition (the table is damaged)."""
        horizons = self._horizons()
        return max(horizons.get(series, ""), horizons.get("", ""))

    def keep_horizon(self, series: str, day: str) -> None:
        """From here on rows of a series before this day may go. Within `changing`."""
        if day > self.horizon(series):
            write_whole(self.directory / RETENTION, msgspec.json.encode(self._horizons() | {series: day}))

    def _horizons(self) -> dict[str, str]:
        file = self.directory / RETENTION
        try:
            data = file.read_bytes().strip()
            return _HORIZONS.decode(data) if data[:1] == b"{" else {"": data.decode()}
        except FileNotFoundError:
            return {}
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FailedPrecondition(f"The table is damaged: {file}: {error}") from None

    def sweep(self) -> int:
        """Remove what killed runs have left, once every series is settled: files that no commit names. Within
        `changing` and `rewriting`. Returns how many there were."""
        heap = self.directory / STAGING
        going = [*self.strays(), *(path for path in heap.rglob("*") if path.is_file())]
        going += self.directory.glob(f"{COMMITS}/*/*.partial")
        for path in going:
            path.unlink(missing_ok=True)
        shutil.rmtree(heap, ignore_errors=True)
        return len(going)

    def strays(self) -> list[Path]:
        """Parquet files of ours that no commit names: what a removal that was killed has left. Files with names that
        this module does not give are somebody else's. Within `changing`."""
        known = {
            str(self.directory / file.path)
            for series in self.series()
            for commit in self._all_commits(series)
            for file in commit.files
        }
        found = sorted(self.directory.glob("topic=*/**/*.parquet"))
        return [path for path in found if str(path) not in known and _FILE.fullmatch(path.name)]

    def _all_commits(self, series: str) -> list[Commit]:
        commits = []
        for file in sorted((self.directory / COMMITS / quoted(series)).glob("*.json")):
            try:
                commits.append(_COMMIT.decode(file.read_bytes()))
            except msgspec.DecodeError as error:
                raise FailedPrecondition(f"The table is damaged: {file}: {error}") from None
        return commits

    def _move(self, file: File) -> None:
        place = self.directory / file.path
        if place.exists():
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            (self.directory / file.staged).rename(place)
        except FileNotFoundError:
            raise FailedPrecondition(f"The table is damaged: {place} is missing") from None

    def _remove(self, commit: Commit) -> None:
        for file in commit.files:
            (self.directory / file.path).unlink(missing_ok=True)
        self._commit_file(commit).unlink(missing_ok=True)

    def _commit_file(self, commit: Commit) -> Path:
        return self.directory / COMMITS / quoted(commit.topic) / f"{commit.name}.json"

    def _staging(self, series: str) -> Path:
        return self.directory / STAGING / quoted(series)


def exactly(what: str, expected: int) -> Callable[[int], None]:
    """A check for `Table.write`: as many rows as this."""

    def check(rows: int) -> None:
        if rows != expected:
            raise Internal(f"Spark wrote {rows} of {expected} rows of {what}; nothing was committed")

    return check


def batch_name(number: int, first: int, last: int, generation: int = 0) -> str:
    """See the module."""
    return f"{number:06d}-{first:012d}-{last:012d}" + (f"-r{generation}" if generation else "")


def quoted(series: str) -> str:
    """The name of a series as the name of a directory, in the way that Spark and Hive read it back. Raises:
    FailedPrecondition (no file system takes so long a name)."""
    name = quote(series, safe="")
    if len(name) > NAME_BYTES_MAX:
        shown = f"{series[:SHOWN_CHARACTERS_MAX]}…" if len(series) > SHOWN_CHARACTERS_MAX else series
        raise FailedPrecondition(
            f"{shown} cannot be kept in files: its name takes {len(name)} bytes there, of {NAME_BYTES_MAX} at most. "
            "Leave it out with --topic or --topic-pattern"
        )
    return name


def write_whole(path: Path, data: bytes) -> None:
    """A small file, whole or not at all, durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    _sync(partial)
    partial.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
