"""An invented pair of dumps in DMOZ's syntax, for trials and tests: its pages say nothing about the real directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import IO

import numpy as np
from tqdm import tqdm

from fl_lightning.files import atomic_file

_WORDS = {
    "Arts": "music film theatre painting animation poetry dance novel opera guitar",
    "Business": "marketing finance insurance shipping textiles consulting chemicals energy retail accounting",
    "Computers": "software hardware internet database linux programming security graphics robotics compiler",
    "Games": "chess cards dice puzzle arcade strategy roleplaying console poker trivia",
    "Health": "medicine nursing nutrition surgery fitness dentistry pharmacy cancer allergy therapy",
    "Home": "cooking gardening furniture cleaning decorating soup kitchen family lawn recipes",
    "News": "newspaper weather headlines journal magazine broadcast column press editorial breaking",
    "Recreation": "fishing camping travel birding boating radio hiking pets scouting climbing",
    "Reference": "dictionary museum library university education maps almanac archive encyclopedia quotations",
    "Regional": "county city village province harbour tourism island district valley coast",
    "Science": "physics biology chemistry astronomy geology mathematics beetle genetics climate telescope",
    "Shopping": "flowers jewelry clothing toys gifts antiques wine shoes auction catalog",
    "Society": "religion law history politics genealogy philosophy charity church holidays government",
    "Sports": "football tennis swimming cycling hockey golf baseball skiing athletics rowing",
    "World": "deutsch français italiano español polski nederlands svenska dansk türkçe 日本語",
}
_COMMON = """
    the of and in for with a to from on is by information about site home page links photographs offers includes company
    club list online news services products contact based history guide resources description events free
"""
_THIRD = ("Directories", "History", "People", "R&B", "Côte_d'Azur", "Organizations")
_FOURTH = ("A", "B", 'C_("x")')
_LEFT_OUT = ("News", "Regional", "World")
_CLASS_WORD_SHARE = 0.35
_HEADER = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<RDF xmlns:r="http://www.w3.org/TR/RDF/" '
    'xmlns:d="http://purl.org/dc/elements/1.0/" xmlns="http://dmoz.org/rdf/">\n'
    "  <!-- Invented sample in the syntax of DMOZ's dumps -->\n\n"
)
# what the real dumps hold now and then: escaped markup, bare ampersands, control characters, bytes that are no UTF-8
_ODDITIES = (
    b" R&amp;D",
    b" &lt;b&gt;new&lt;/b&gt;",
    b" Q & A",
    b" \x0b",
    b" \xff\xfe",
    b" &#11;",
    " Café".encode(),
)


def write_sample_dump(data_dir: str | os.PathLike[str], num_pages: int = 20_000, seed: int = 0) -> None:
    """Write ``dmoz/content.rdf.u8`` and ``dmoz/structure.rdf.u8``: 3,765 topics of four levels, and invented pages.

    About half of the pages are in the three topics that the thesis leaves out. A page's words tell its class.

    Args:
        data_dir: The folder that a :class:`~fl_lightning.datamodules.DMOZDataModule` gets; made if need be.
        num_pages: Number of pages, about 350 bytes each.
        seed: Seed of pages and relations; the same one writes the same bytes on every machine.

    Raises:
        FileExistsError: If one of the files is there already.
    """
    folder = Path(data_dir) / "dmoz"
    paths = [folder / name for name in ("content.rdf.u8", "structure.rdf.u8")]
    for path in paths:
        if path.exists() or path.with_name(f"{path.name}.gz").exists():
            raise FileExistsError(f"There is a {path} already, which may be DMOZ's own. Choose another `data_dir`.")
    folder.mkdir(parents=True, exist_ok=True)
    topics = list(_topics())
    rng = np.random.default_rng(seed)
    # whole numbers and no functions of the C library, whose last bits differ from machine to machine
    popularity = rng.integers(1, 10, len(topics)) ** 2
    left_out = np.array([topic.split("/")[1] in _LEFT_OUT for topic in topics])
    weights = popularity / np.where(left_out, 2 * popularity[left_out].sum(), 2 * popularity[~left_out].sum())
    counts = np.bincount(rng.choice(len(topics), num_pages, p=weights), minlength=len(topics))
    with _written(paths[0]) as file:
        numbers = tqdm(counts.tolist(), desc=paths[0].name, unit=" topics", leave=False, disable=None)
        for number, (topic, count) in enumerate(zip(topics, numbers, strict=True)):
            _write_pages(file, number, topic, count, rng)
    with _written(paths[1]) as file:
        _write_structure(file, topics, rng)


def _topics() -> Iterator[str]:
    """Yield the topics of four levels, parents before their children."""
    for label, words in _WORDS.items():
        yield f"Top/{label}"
        for second in words.split():
            path = f"Top/{label}/{second.capitalize()}"
            yield path
            for third in _THIRD:
                yield f"{path}/{third}"
                yield from (f"{path}/{third}/{fourth}" for fourth in _FOURTH)


def _write_pages(file: IO[bytes], number: int, topic: str, count: int, rng: np.random.Generator) -> None:
    """Write a topic's links and its pages."""
    urls = [f"http://www.example.com/{number}/{page}?a=1&amp;b=2" for page in range(count)]
    links = "".join(f'    <link r:resource="{url}"></link>\n' for url in urls)
    name = escape(topic)
    file.write(f'  <Topic r:id="{name}">\n    <catid>{number}</catid>\n{links}  </Topic>\n'.encode())
    common_words = _COMMON.split()
    words = common_words + _WORDS[topic.split("/")[1]].split()
    lengths = np.stack([rng.integers(2, 6, count), rng.integers(4, 31, count)], axis=1)
    common = rng.integers(len(common_words), size=lengths.sum())
    own = rng.integers(len(common_words), len(words), size=lengths.sum())
    picks = np.where(rng.random(lengths.sum()) < _CLASS_WORD_SHARE, own, common).tolist()
    odd = rng.integers(20 * len(_ODDITIES), size=count).tolist()
    start = 0
    for url, (in_title, in_text), oddity in zip(urls, lengths.tolist(), odd, strict=True):
        title = " ".join([words[pick] for pick in picks[start : start + in_title]]).capitalize()
        text = " ".join([words[pick] for pick in picks[start + in_title : start + in_title + in_text]])
        start += in_title + in_text
        file.write(f'  <ExternalPage about="{url}">\n    <d:Title>{title}</d:Title>\n'.encode())
        if oddity != len(_ODDITIES):  # else a page without description
            end = _ODDITIES[oddity] if oddity < len(_ODDITIES) else b""
            file.write(b"    <d:Description>%s%s.</d:Description>\n" % (text.capitalize().encode(), end))
        file.write(f"    <topic>{name}</topic>\n  </ExternalPage>\n".encode())


def _write_structure(file: IO[bytes], topics: list[str], rng: np.random.Generator) -> None:
    """Write the topics with their children, links to two topics elsewhere, and links to topics without pages."""
    children: dict[str, list[str]] = {}
    for topic in topics:
        children.setdefault(topic.rpartition("/")[0], []).append(topic)
    upper = np.array([number for number, topic in enumerate(topics) if topic.count("/") < 3])
    anywhere = rng.integers(len(topics), size=(len(topics), 2))
    # half of the links lead to the two upper levels
    elsewhere = np.where(rng.random(anywhere.shape) < 0.5, rng.choice(upper, anywhere.shape), anywhere).tolist()
    # some topics have pages and no entry of their own
    absent = rng.random(len(topics)) < 0.03
    for number, (topic, (symbolic, related)) in enumerate(zip(topics, elsewhere, strict=True)):
        if absent[number] and topic.count("/") > 1:
            continue
        lines = [f'  <Topic r:id="{escape(topic)}">', f"    <catid>{number}</catid>", "    <d:Title>Name</d:Title>"]
        lines += [
            f'    <narrow{("", 1, 2)[place % 3]} r:resource="{escape(child)}"></narrow{("", 1, 2)[place % 3]}>'
            for place, child in enumerate(children.get(topic, ()))
        ]
        lines.append(f'    <symbolic{number % 2 + 1} r:resource="Name:{escape(topics[symbolic])}"/>')
        lines.append(f'    <related r:resource="{escape(topics[related])}"/>')
        lines.append(f'    <related r:resource="{escape(topic)}/Without_Pages"/>')
        lines.append(f'    <altlang r:resource="Deutsch:Top/World/Deutsch/{number}"/>')
        lines.append("  </Topic>\n")
        file.write("\n".join(lines).encode())


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    """Open an RDF file that appears whole or not at all."""
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        file.write(_HEADER.encode())
        yield file
        file.write(b"</RDF>\n")
