"""A subscription on disk: its definition, and its positions, in one small file.

The file: 8 bytes of magic, u32 length, u32 CRC32C of the rest, MessagePack. It is replaced as a
whole, so a crash leaves the old or the new file. A damaged file is renamed (``.bad``), and not
read; until it is restored or removed its subscription is neither served nor created again.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from tidecast.disk import make_directory, sync_directory, write_atomically
from tidecast.errors import StorageError
from tidecast.log.files import checksum

MAGIC = b"TDCSUBS1"
FILE_BYTES_MAX = 64 << 20
_HEAD = struct.Struct("<8sII")


class SavedCursor(msgspec.Struct, array_like=True):
    """Position of a subscription in one queue: all records before ``position`` are completed.

    ``acked``: completed ranges beyond it; ``attempts``: (token, deliveries so far).
    """

    topic: str
    queue: int
    position: int
    acked: list[tuple[int, int]] = []
    attempts: list[tuple[int, int]] = []

    def settles(self, token: int) -> bool:
        """Whether a record is completed."""
        return token < self.position or any(first <= token < end for first, end in self.acked)


class SentLetter(msgspec.Struct, array_like=True):
    """A dead letter that has a number, and may be stored or not."""

    queue: int
    token: int
    seq: int
    attempts: int
    reason: str

    @property
    def place(self) -> tuple[int, int]:
        """Where its record is."""
        return self.queue, self.token


class LetterNumbers(msgspec.Struct, kw_only=True):
    """Dead letters of the records of one topic, which another engine may keep: their numbers.

    A number is the letter's sequence in a producer's session. The numbers of ``sent`` begin behind
    ``durable_seq``, and have no gap up to ``next_seq``.
    """

    dead_letter: str
    producer: str
    durable_seq: int = 0
    next_seq: int = 1
    sent: list[SentLetter] = []
    stored: list[tuple[int, int]] = []
    """Places of records whose letters are durable, and that the cursors do not count yet."""

    def add(self, queue: int, token: int, attempts: int, reason: str) -> None:
        """Number a letter."""
        self.sent.append(SentLetter(queue, token, self.next_seq, attempts, reason))
        self.next_seq += 1

    def give_back(self, next_seq: int) -> None:
        """The numbers from ``next_seq`` on were not saved: forget them."""
        self.sent = [each for each in self.sent if each.seq < next_seq]
        self.next_seq = next_seq

    def note_durable(self, seq: int) -> None:
        """Letters up to number ``seq`` are durable."""
        self.stored += [each.place for each in self.sent if each.seq <= seq]
        self.sent = [each for each in self.sent if each.seq > seq]
        self.durable_seq = max(self.durable_seq, seq)

    def resume_behind(self, seq: int) -> None:
        """Letters up to number ``seq`` are durable, and no other letters."""
        self.note_durable(seq)
        self.sent, self.next_seq = [], self.durable_seq + 1

    def renumber(self, producer: str) -> None:
        """Another producer sends the letters that are not durable."""
        self.producer, self.durable_seq, self.next_seq = producer, 0, 1
        for each in self.sent:
            each.seq = self.next_seq
            self.next_seq += 1

    def drop_settled(self, cursors: dict[int, SavedCursor]) -> None:
        """Forget stored letters whose records the cursors of the topic count as completed."""
        self.stored = [
            (queue, token)
            for queue, token in self.stored
            if queue not in cursors or not cursors[queue].settles(token)
        ]


class SavedSubscription(msgspec.Struct, kw_only=True):
    """A durable subscription."""

    pattern: str
    name: str
    created_ns: int
    ack_wait_s: float = 30.0
    max_deliver: int = 5
    dead_letter: str = ""
    key_pattern: str = ""
    headers: dict[str, str] = {}
    where: str = ""
    filter_digest: str = ""
    """Digest of the compiled filter that each consumer must provide; the code is not kept."""
    paused: bool = False
    cursors: list[SavedCursor] = msgspec.field(name="lanes", default_factory=list)
    """Written by the old name until the next level, so that a build before this one reads it."""
    renamed: list[SavedCursor] | msgspec.UnsetType = msgspec.field(
        name="cursors", default=msgspec.UNSET
    )
    """Read only: ``cursors`` as the next level writes them (ADR 0042)."""
    redriven: list[tuple[int, int]] = []
    """(queue, token) of dead letters that were sent again."""
    redrive_start: dict[int, int] = {}
    """By queue of the dead-letter topic: no letter before this token is to be sent again."""
    letters_from: dict[str, dict[int, int]] = {}
    """Topic of its dead letters, by queue: records of letters before it count in the cursors."""
    letters_of: dict[str, LetterNumbers] = {}
    """Dead letters that other engines may keep, by the topic of their records."""
    dead_open: int = 0
    """Dead letters that were stored and not sent again since."""
    generation: int = 0
    """How often a subscription of this pattern and name had been deleted before, see `Deleted`."""

    def __post_init__(self) -> None:
        if self.renamed is not msgspec.UNSET:
            self.cursors, self.renamed = self.renamed, msgspec.UNSET

    def set_paused(self, paused: bool) -> bool:
        """Pause or resume it. Returns whether it was paused before."""
        before, self.paused = self.paused, paused
        return before

    def set_cursors(self, cursors: list[SavedCursor]) -> None:
        """Set its position in each queue."""
        self.cursors = cursors
        for topic, numbers in self.letters_of.items():
            numbers.drop_settled({each.queue: each for each in cursors if each.topic == topic})

    def set_letters_from(self, starts: dict[str, dict[int, int]]) -> None:
        """Set ``letters_from``: the cursors count the records of all letters before."""
        self.letters_from = starts

    def set_dead_open(self, count: int) -> None:
        """So many dead letters were not sent again."""
        self.dead_open = count

    def note_redriven(self, done: set[tuple[int, int]], starts: dict[int, int]) -> None:
        """Dead letters were sent again; before ``starts``, which never go back, nothing is left."""
        before = self.redrive_start
        self.redrive_start = before | {q: max(t, before.get(q, 0)) for q, t in starts.items()}
        self.redriven = sorted((q, t) for q, t in done if t >= self.redrive_start.get(q, 0))

    def forget_letters(self, queues: Collection[int] | None = None) -> None:
        """Drop the marks of some queues of the dead-letter topic. None: the topic is deleted."""
        if queues is None:
            self.letters_from = {
                topic: starts
                for topic, starts in self.letters_from.items()
                if topic != self.dead_letter
            }
        gone = {*self.redrive_start, *(q for q, _ in self.redriven)} if queues is None else queues
        self.redrive_start = {q: t for q, t in self.redrive_start.items() if q not in gone}
        self.redriven = [(q, t) for q, t in self.redriven if q not in gone]


class SubscriptionStore:
    """The subscriptions' files of one directory, which is made if ``make``."""

    def __init__(self, directory: Path, *, make: bool = True) -> None:
        self.directory, self._make = directory, make

    def path(self, pattern: str, name: str) -> Path:
        """The file of a subscription."""
        return self.directory / f"{quote(pattern, safe='')}@{quote(name, safe='')}.sub"

    def save(self, saved: SavedSubscription) -> None:
        """Write a subscription. Raises StorageError."""
        content = msgspec.msgpack.encode(saved)
        raw = _HEAD.pack(MAGIC, len(content), checksum(content)) + content
        path = self.path(saved.pattern, saved.name)
        try:
            if self._make:
                make_directory(self.directory)
            write_atomically(path, raw)
        except OSError as problem:
            raise StorageError(f"{path}: {problem.strerror}", problem.errno or 0) from problem

    def remove(self, pattern: str, name: str) -> None:
        """Remove a subscription's file, also a damaged file."""
        path = self.path(pattern, name)
        path.unlink(missing_ok=True)
        path.with_suffix(".bad").unlink(missing_ok=True)

    def load(self) -> tuple[list[SavedSubscription], list[Path]]:
        """All sound subscriptions, and all damaged files, found now or earlier (``.bad``)."""
        found, bad = [], set(self.directory.glob("*.bad"))
        for path in sorted(self.directory.glob("*.sub")):
            saved = read_subscription(path)
            if saved is None:
                bad.add(path.with_suffix(".bad"))
                with contextlib.suppress(OSError):
                    path.rename(path.with_suffix(".bad"))
            else:
                found.append(saved)
                bad.discard(path.with_suffix(".bad"))
        return found, sorted(bad)

    def damaged(self, pattern: str, name: str) -> Path | None:
        """The file of a subscription, if it is there and cannot be read."""
        path = self.path(pattern, name)
        if path.exists():
            return path if read_subscription(path) is None else None
        bad = path.with_suffix(".bad")
        return bad if bad.exists() else None


class Deleted:
    """Counts deletions of subscriptions, for engines that share queues and own some in turn.

    When an engine deletes a subscription, other engines, and files beside other engines' queues,
    still have it with an older generation: those copies are invalid. A new subscription of that
    name gets the newer generation. Each pattern and name has an empty file, whose suffix is the
    generation.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._generations: dict[tuple[str, str], int] = {}
        self._changed = False

    def look(self) -> None:
        """Read the deletions of other engines."""
        with contextlib.suppress(OSError):
            for path in self.directory.iterdir():
                suffix = path.suffix[1:]
                if suffix.isascii() and suffix.isdecimal():
                    self._note(key_of(path), int(suffix))

    def _note(self, key: tuple[str, str], generation: int) -> None:
        if generation > self._generations.get(key, 0):
            self._generations[key], self._changed = generation, True

    def has_changed(self) -> bool:
        """Was any deleted since this was asked last?"""
        self.look()
        changed, self._changed = self._changed, False
        return changed

    def generation(self, pattern: str, name: str) -> int:
        """Of a subscription that begins now."""
        self.look()
        return self._generations.get((pattern, name), 0)

    def is_over(self, saved: SavedSubscription) -> bool:
        """Was it deleted since it began?"""
        return saved.generation < self._generations.get((saved.pattern, saved.name), 0)

    def note(self, pattern: str, name: str, generation: int) -> None:
        """A subscription is deleted, for all engines. Raises StorageError."""
        known = self.generation(pattern, name)
        following = max(known, generation) + 1
        stem = f"{quote(pattern, safe='')}@{quote(name, safe='')}"
        path = self.directory / f"{stem}.{following}"
        try:
            make_directory(self.directory)
            path.touch(mode=0o600)
            sync_directory(self.directory)
        except OSError as problem:
            raise StorageError(f"{path}: {problem.strerror}", problem.errno or 0) from problem
        (self.directory / f"{stem}.{known}").unlink(missing_ok=True)
        self._note((pattern, name), following)


def key_of(path: Path) -> tuple[str, str]:
    """(pattern, name) of the subscription that a file is of, by its name."""
    pattern, _, name = path.stem.partition("@")
    return unquote(pattern), unquote(name)


def read_subscription(path: Path) -> SavedSubscription | None:
    """The subscription in a file; None when it is not sound."""
    try:
        raw = path.read_bytes()
        magic, length, crc = _HEAD.unpack_from(raw)
        content = raw[_HEAD.size :]
        if magic != MAGIC or length != len(content) or length > FILE_BYTES_MAX:
            return None
        if checksum(content) != crc:
            return None
        return msgspec.msgpack.decode(content, type=SavedSubscription)
    except (OSError, struct.error, msgspec.DecodeError):
        return None
