"""Streams the pages and the relations of topics out of DMOZ's RDF dumps, plain or gzipped.

The dumps are XML in name only: they may hold control characters, bytes that are not UTF-8, bare ampersands and
references to characters that XML does not know. These are repaired before an XML parser sees them; lxml's ``recover``
would leave out the ampersands, which are words of the texts.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from xml.etree.ElementTree import Element, iterparse

from tqdm import tqdm

from fl_lightning.datamodules.files import reading

_BLOCK_BYTES = 1 << 20
_CONTROL_BYTES = bytes(set(range(32)) - set(b"\t\n\r"))
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REFERENCE = re.compile(r"&(?:(?:amp|lt|gt|quot|apos|#(\d{1,7})|#x([0-9A-Fa-f]{1,6}));)?")


def read_pages(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield topic, title and description of each page of ``content.rdf.u8``, in its order.

    A page without ``topic`` has that of the Topic before it; a title or description that it lacks is empty.

    Raises:
        FileNotFoundError: If there is no such file.
        RuntimeError: If it is no RDF dump, damaged, or cut off; raised where the reading gets there.
    """
    topic = ""
    for element in _entries(path):
        if _name(element) == "Topic":
            topic = _attribute(element, "id")
        elif _name(element) == "ExternalPage":
            topic_of_page = element.findtext("{*}topic", "").strip() or topic
            title = element.findtext("{*}Title", "")
            description = element.findtext("{*}Description", "")
            yield topic_of_page, title, description


def read_relations(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each narrow, symbolic and related link of ``structure.rdf.u8`` as two topics, the one that links first.

    Symbolic links carry a name, as ``"Cartoons:Top/Arts/Animation/Cartoons"``, which is left out. Errors are those of
    :func:`read_pages`.
    """
    for element in _entries(path):
        if _name(element) != "Topic":
            continue
        topic = _attribute(element, "id")
        for link in element:
            # There are also narrow1, symbolic2 and so on.
            if not _name(link).startswith(("narrow", "symbolic", "related")):
                continue
            target = _attribute(link, "resource")
            if not target.startswith("Top/"):
                target = target[target.find(":Top/") + 1 :]
            yield topic, target


def _entries(path: Path) -> Iterator[Element]:
    """Yield the elements within the root, each when it is complete."""
    open_file = gzip.open if path.suffix == ".gz" else open
    depth = 0
    root = None
    with reading(path, "one of DMOZ's RDF dumps"), open_file(path, "rb") as file:
        elements = iterparse(_Repaired(file), ["start", "end"])
        for event, element in tqdm(elements, path.name, unit=" tags", leave=False, disable=None):
            if root is None:
                root = element
            if event == "start":
                depth += 1
                continue
            depth -= 1
            if depth == 1:
                yield element
                # The root keeps its children, which would fill the memory.
                root.clear()


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _attribute(element: Element, name: str) -> str:
    """Return an attribute of RDF's namespace, however that is written."""
    for key, value in element.attrib.items():
        if key.endswith(f"}}{name}"):
            return value
    return ""


class _Repaired:
    """A dump as an XML parser reads it: in blocks of whole lines, without what XML forbids."""

    def __init__(self, file: BufferedIOBase) -> None:
        self.file = file

    def read(self, length: int = -1, /) -> str:
        lines = b"".join(self.file.readlines(_BLOCK_BYTES))
        text = lines.translate(None, _CONTROL_BYTES).decode("utf-8", "replace")
        text = _REFERENCE.sub(_valid, text)
        return _FORBIDDEN.sub("", text)


def _valid(match: re.Match[str]) -> str:
    """Return a reference unchanged, nothing if XML forbids its character, and a bare ampersand as a reference."""
    if match[0] == "&":
        return "&amp;"
    decimal, hexadecimal = match.groups()
    if hexadecimal:
        code = int(hexadecimal, 16)
    elif decimal:
        code = int(decimal)
    else:
        # The character of a name, such as &lt;, is allowed.
        return match[0]
    is_allowed = code < 0x110000 and not _FORBIDDEN.match(chr(code))
    return match[0] if is_allowed else ""
