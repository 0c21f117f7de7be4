"""An invented pair of dumps in DMOZ's syntax, for trials and tests: its pages say nothing about the real directory."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from html import escape
from pathlib import Path

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
_FOURTH = ("", "/A", "/B", '/C_("x")')
_HEADER = """<?xml version="1.0" encoding="UTF-8"?>
<RDF xmlns:r="http://www.w3.org/TR/RDF/" xmlns:d="http://purl.org/dc/elements/1.0/" xmlns="http://dmoz.org/rdf/">
  <!-- Invented sample in the syntax of DMOZ's dumps -->
"""
# The real dumps hold these now and then: escaped markup, bare ampersands, control characters, bytes that are not UTF-8.
_ODDITIES = (" R&amp;D", " &lt;b&gt;new&lt;/b&gt;", " Q & A", " \x0b", " \udcff\udcfe", " &#11;", " Café")
_DESCRIPTION = "    <d:Description>{}</d:Description>\n"


def write_sample_dump(data_dir: str | os.PathLike[str], num_pages: int = 20_000, seed: int = 0) -> None:
    """Write ``dmoz/content.rdf.u8`` and ``dmoz/structure.rdf.u8``: 3,765 topics of four levels, and invented pages.

    Half of the pages or so are in topics that :class:`~fl_lightning.datamodules.DMOZDataModule` leaves out.

    Args:
        data_dir: Folder that a :class:`~fl_lightning.datamodules.DMOZDataModule` gets; made if missing.
        num_pages: Number of pages, about 350 bytes each.
        seed: Seed of pages and relations; the same one writes the same bytes on every machine.

    Raises:
        FileExistsError: If one of the files is there already.
    """
    folder = Path(data_dir) / "dmoz"
    found = sorted(folder.glob("*.rdf.u8*"))
    if found:
        raise FileExistsError(f"There is a {found[0]} already, which may be a real one. Choose another `data_dir`.")
    rng = random.Random(seed)
    topics = list(_topics())
    _write(folder / "content.rdf.u8", _pages(topics, num_pages, rng))
    _write(folder / "structure.rdf.u8", _relations(topics, rng))


def _write(path: Path, entries: Iterator[str]) -> None:
    with atomic_file(path) as temporary:
        text = "".join([_HEADER, *entries, "</RDF>\n"])
        temporary.write_bytes(text.encode(errors="surrogateescape"))


def _topics() -> Iterator[str]:
    """Yield the topics of four levels, parents before their children."""
    for label, words in _WORDS.items():
        yield f"Top/{label}"
        for word in words.split():
            second = f"Top/{label}/{word.capitalize()}"
            yield second
            for third in _THIRD:
                for fourth in _FOURTH:
                    yield f"{second}/{third}{fourth}"


def _pages(topics: list[str], num_pages: int, rng: random.Random) -> Iterator[str]:
    """Yield the pages: of each topic some, whose words are those of its label and common ones."""
    left_out = ("Top/News", "Top/Regional", "Top/World")
    weights = []
    for topic in topics:
        weight = rng.randint(1, 9) ** 2
        weights.append(4 * weight if topic.startswith(left_out) else weight)
    topic_of_page = sorted(rng.choices(topics, weights, k=num_pages))
    common = _COMMON.split()
    for number, topic in enumerate(topic_of_page):
        of_label = _WORDS[topic.split("/")[1]].split()
        words = of_label + common
        shares = [0.35 / len(of_label)] * len(of_label) + [0.65 / len(common)] * len(common)
        title = " ".join(rng.choices(words, shares, k=rng.randint(2, 5)))
        text = " ".join(rng.choices(words, shares, k=rng.randint(4, 30)))
        if rng.random() < 0.05:
            text += rng.choice(_ODDITIES)
        has_description = rng.random() >= 0.01
        yield f'  <ExternalPage about="http://www.example.com/{number}?a=1&amp;b=2">\n'
        yield f"    <d:Title>{title.capitalize()}</d:Title>\n"
        if has_description:
            yield _DESCRIPTION.format(f"{text.capitalize()}.")
        yield f"    <topic>{escape(topic)}</topic>\n  </ExternalPage>\n"


def _relations(topics: list[str], rng: random.Random) -> Iterator[str]:
    """Yield the topics with links to their parts, to two topics elsewhere, and to topics without pages."""
    children: dict[str, list[str]] = {}
    for topic in topics:
        children.setdefault(topic.rpartition("/")[0], []).append(topic)
    upper = [topic for topic in topics if topic.count("/") < 3]
    for number, topic in enumerate(topics):
        # Half of the links lead to the upper levels.
        symbolic = rng.choice(upper if rng.random() < 0.5 else topics)
        related = rng.choice(upper if rng.random() < 0.5 else topics)
        links = []
        for place, child in enumerate(children.get(topic, ())):
            suffix = ("", "1", "2")[place % 3]
            links.append((f"narrow{suffix}", child))
        links.append((f"symbolic{number % 2 + 1}", f"Name:{symbolic}"))
        links.append(("related", related))
        links.append(("related", f"{topic}/Without_Pages"))
        links.append(("altlang", f"Deutsch:Top/World/Deutsch/{number}"))
        # Some topics have pages and no entry here.
        if topic not in upper and rng.random() <= 0.03:
            continue
        yield f'  <Topic r:id="{escape(topic)}">\n'
        for kind, target in links:
            yield f'    <{kind} r:resource="{escape(target)}"/>\n'
        yield "  </Topic>\n"
