"""Streams the pages and the relations of topics out of DMOZ's RDF dumps, plain or gzipped.

The dumps are XML in name only: they may hold control characters, bytes that are no UTF-8, bare ampersands and
references to characters that XML does not know. These are repaired before an XML parser sees them. A dump is read in
blocks of a megabyte, so that memory does not grow with its size.
"""

from __future__ import annotations

import gzip
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Generic, NamedTuple, TypeVar, cast
from xml.parsers import expat

from tqdm import tqdm

_BLOCK_BYTES = 1 << 20
_MAX_BYTES_WITHOUT_TAG = 1 << 24
_CONTROL_BYTES = bytes(set(range(32)) - set(b"\t\n\r"))
_NO_CHARACTERS = re.compile("[\ufffe\uffff]")
_BARE_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9A-Fa-f]{1,6});)")
_CHARACTER_REFERENCE = re.compile(r"&#(?:(\d{1,7})|x([0-9A-Fa-f]{1,6}));")
_RELATIONS = ("narrow", "symbolic", "related")  # also with a number behind: narrow1, symbolic2


class Page(NamedTuple):
    """A page of the directory.

    Attributes:
        topic: Path of its topic, as ``"Top/Arts/Animation"``.
        title: Title; empty if it has none.
        description: Description; empty if it has none.
    """

    topic: str
    title: str
    description: str


class Relation(NamedTuple):
    """A relation of two topics.

    Attributes:
        topic: Path of the topic that names the other.
        target: Path of the other.
    """

    topic: str
    target: str


_Record = TypeVar("_Record", bound="Page | Relation")


def read_pages(path: Path) -> Iterator[Page]:
    """Yield the pages of ``content.rdf.u8``, in its order; a page without ``topic`` has that of the Topic before it.

    Args:
        path: The dump, plain or gzipped, whatever its name.

    Raises:
        FileNotFoundError: If there is no such file.
        RuntimeError: If it is no RDF dump, damaged, or cut off; raised where the reading gets there.
    """
    return _stream(path, _PageReader())


def read_relations(path: Path) -> Iterator[Relation]:
    """Yield the narrow, symbolic and related links of ``structure.rdf.u8``, in its order.

    Symbolic links carry a name, as ``"Cartoons:Top/Arts/Animation/Cartoons"``, which is left out. Arguments and errors
    are those of :func:`read_pages`.
    """
    return _stream(path, _RelationReader())


class _Reader(ABC, Generic[_Record]):
    """Collects records from the parser's events."""

    def __init__(self) -> None:
        self.topic = ""
        self.records: list[_Record] = []

    def take(self) -> list[_Record]:
        """Return the records since the last call."""
        records, self.records = self.records, []
        return records

    def attach(self, parser: expat.XMLParserType) -> None:
        self.parser = parser
        parser.StartElementHandler = self.start

    @abstractmethod
    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Take note of an element's start."""


class _PageReader(_Reader[Page]):
    _TEXTS = ("d:Title", "d:Description", "topic")

    def __init__(self) -> None:
        super().__init__()
        self.page: dict[str, str] | None = None
        self.text: list[str] = []

    def attach(self, parser: expat.XMLParserType) -> None:
        super().attach(parser)
        parser.EndElementHandler = self.end

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "Topic":
            self.topic = attributes.get("r:id", "")
        elif name == "ExternalPage":
            self.page = {}
        elif self.page is not None and name in self._TEXTS:
            self.text = []
            self.parser.CharacterDataHandler = self.text.append

    def end(self, name: str) -> None:
        if self.page is None:
            return
        if name in self._TEXTS:
            # without a handler the parser passes over the text between elements by itself
            self.parser.CharacterDataHandler = None
            self.page[name] = "".join(self.text)
        elif name == "ExternalPage":
            topic = self.page.get("topic", "").strip() or self.topic
            self.records.append(Page(topic, self.page.get("d:Title", ""), self.page.get("d:Description", "")))
            self.page = None


class _RelationReader(_Reader[Relation]):
    def start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "Topic":
            self.topic = attributes.get("r:id", "")
        elif name.startswith(_RELATIONS):
            self.records.append(Relation(self.topic, _without_name(attributes.get("r:resource", ""))))


def _without_name(resource: str) -> str:
    """Strip the name before a topic's path."""
    start = -1 if resource.startswith("Top/") else resource.find(":Top/")
    return resource[start + 1 :]


def _stream(path: Path, reader: _Reader[_Record]) -> Iterator[_Record]:
    parser = expat.ParserCreate()
    parser.buffer_text = True
    reader.attach(parser)
    try:
        with (
            path.open("rb") as raw,
            tqdm(
                total=path.stat().st_size, desc=path.name, unit="B", unit_scale=True, leave=False, disable=None
            ) as progress,
        ):
            for block in _blocks(_unzipped(raw)):
                parser.Parse(_repaired(block), False)
                progress.update(raw.tell() - progress.n)
                yield from reader.take()
        parser.Parse("", True)
    except expat.ExpatError as error:
        problem = f"{expat.ErrorString(error.code)} in line {error.lineno}, column {error.offset}"
        raise _no_dump(path, problem) from error
    except (EOFError, gzip.BadGzipFile, zlib.error, _NoTagError) as error:
        raise _no_dump(path, str(error)) from error


def _unzipped(raw: IO[bytes]) -> IO[bytes]:
    is_gzip = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_gzip else raw


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the file in blocks that end with ">", which no character and no reference goes across."""
    rest = b""
    while chunk := file.read(_BLOCK_BYTES):
        head, end, tail = chunk.rpartition(b">")
        if end:
            yield rest + head + end
            rest = tail
        else:
            rest += chunk
        if len(rest) > _MAX_BYTES_WITHOUT_TAG:
            raise _NoTagError(f"no tag in {len(rest):,} bytes")
    yield rest


def _repaired(block: bytes) -> str:
    text = block.translate(None, _CONTROL_BYTES).decode("utf-8", "replace")
    text = _NO_CHARACTERS.sub("", text)
    text = _BARE_AMPERSAND.sub("&amp;", text)
    return _CHARACTER_REFERENCE.sub(_valid_reference, text)


def _valid_reference(match: re.Match[str]) -> str:
    """Return a reference to a character unchanged, or nothing if XML forbids the character."""
    decimal, hexadecimal = match.groups()
    code = int(decimal) if decimal else int(hexadecimal, 16)
    allowed = code in (9, 10, 13) or 32 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return match.group() if allowed else ""


class _NoTagError(Exception):
    pass


def _no_dump(path: Path, problem: str) -> RuntimeError:
    return RuntimeError(
        f"{path} is no whole RDF dump: {problem}. Put DMOZ's own file there, content.rdf.u8 or structure.rdf.u8, plain "
        "or gzipped; if it is, it was cut off or damaged, so fetch it anew."
    )
