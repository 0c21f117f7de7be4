"""Streams the pages and the relations of topics out of DMOZ's RDF dumps, plain or gzipped.

The dumps are XML in name only: they may hold control characters, bytes that are no UTF-8, bare ampersands and
references to characters that XML does not know. These are repaired before an XML parser sees them; lxml's ``recover``
would leave out the ampersands, which are words of the texts. A dump is read in blocks of a megabyte.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from tqdm import tqdm

_BLOCK_BYTES = 1 << 20
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


def read_pages(path: Path) -> Iterator[Page]:
    """Yield the pages of ``content.rdf.u8``, in its order; a page without ``topic`` has that of the Topic before it.

    Args:
        path: The dump, plain or gzipped, whatever its name.

    Raises:
        FileNotFoundError: If there is no such file.
        RuntimeError: If it is no RDF dump, damaged, or cut off; raised where the reading gets there.
    """
    topic = ""
    for element in _entries(path):
        if _name(element) == "Topic":
            topic = _attribute(element, "id")
        elif _name(element) == "ExternalPage":
            own, title, text = (element.findtext(f"{{*}}{tag}", "") for tag in ("topic", "Title", "Description"))
            yield Page(own.strip() or topic, title, text)


def read_relations(path: Path) -> Iterator[Relation]:
    """Yield the narrow, symbolic and related links of ``structure.rdf.u8``, in its order.

    Symbolic links carry a name, as ``"Cartoons:Top/Arts/Animation/Cartoons"``, which is left out. Arguments and errors
    are those of :func:`read_pages`.
    """
    for element in _entries(path):
        if _name(element) == "Topic":
            for link in element:
                if _name(link).startswith(_RELATIONS):
                    target = _attribute(link, "resource")
                    start = -1 if target.startswith("Top/") else target.find(":Top/")
                    yield Relation(_attribute(element, "id"), target[start + 1 :])


def _entries(path: Path) -> Iterator[Element]:
    """Yield the elements within the root, each when it is complete."""
    parser: Any = XMLPullParser(["start", "end"])
    path_to_element: list[Element] = []
    try:
        for block in _blocks(path):
            parser.feed(_repaired(block))
            for event, element in parser.read_events():
                if event == "start":
                    path_to_element.append(element)
                    continue
                path_to_element.pop()
                if len(path_to_element) == 1:
                    yield element
                    path_to_element[0].clear()
        parser.close()
    except (ParseError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RuntimeError(
            f"{path} is no whole RDF dump: {error}. Put DMOZ's own file there, content.rdf.u8 or structure.rdf.u8, "
            "plain or gzipped; if it is, it was cut off or damaged, so fetch it anew."
        ) from error


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _attribute(element: Element, name: str) -> str:
    """Return an attribute of RDF's namespace, however that is written."""
    return next((value for key, value in element.attrib.items() if key.endswith(f"}}{name}")), "")


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield the file in blocks that end with ">", which no character and no reference goes across."""
    total = path.stat().st_size
    with path.open("rb") as raw, tqdm.wrapattr(raw, "read", total, desc=path.name, leave=False, disable=None) as read:
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file: IO[bytes] = gzip.GzipFile(fileobj=read) if is_gzip else read  # type: ignore[assignment]
        rest = b""
        while chunk := file.read(_BLOCK_BYTES):
            head, end, tail = chunk.rpartition(b">")
            if end:
                yield rest + head + end
                rest = tail
            else:
                rest += chunk
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
