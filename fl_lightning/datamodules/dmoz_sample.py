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
# what the real dumps hold now and then: escaped markup, bare ampersands, control characters, bytes that are no UTF-8
_ODDITIES = (" R&amp;D", " &lt;b&gt;new&lt;/b&gt;", " Q & A", " \x0b", " \udcff\udcfe", " &#11;", " Café")
_DESCRIPTION = "    <d:Description>{}</d:Description>\n"


def write_sample_dump(data_dir: str | os.PathLike[str], num_pages: int = 20_000, seed: int = 0) -> None:
    """Write ``dmoz/content.rdf.u8`` and ``dmoz/structure.rdf.u8``: 3,765 topics of four levels, and invented pages.

    Half of the pages or so are in topics that :class:`~fl_lightning.datamodules.DMOZDataModule` leaves out.

    Args:
        data_dir: Folder that a :class:`~fl_lightning.datamodules.DMOZDataModule` gets; made if need be.
        num_pages: Number of pages, about 350 bytes each.
        seed: Seed of pages and relations; the same one writes the same bytes on every machine.

    Raises:
        FileExistsError: If one of the files is there already.
    """
    folder = Path(data_dir) / "dmoz"
    if found := sorted(folder.glob("*.rdf.u8*")):
        raise FileExistsError(f"There is a {found[0]} already, which may be DMOZ's own. Choose another `data_dir`.")
    rng = random.Random(seed)
    topics = list(_topics())
    for name, entries in (("content", _pages(topics, num_pages, rng)), ("structure", _relations(topics, rng))):
        with atomic_file(folder / f"{name}.rdf.u8") as temporary:
            text = "".join([_HEADER, *entries, "</RDF>\n"])
            temporary.write_text(text, encoding="utf-8", errors="surrogateescape", newline="\n")


def _topics() -> Iterator[str]:
    """Yield the topics of four levels, parents before their children."""
    for label, words in _WORDS.items():
        yield f"Top/{label}"
        for second in words.split():
            below = ["", *(f"/{third}{fourth}" for third in _THIRD for fourth in _FOURTH)]
            yield from (f"Top/{label}/{second.capitalize()}{path}" for path in below)


def _pages(topics: list[str], num_pages: int, rng: random.Random) -> Iterator[str]:
    """Yield the pages: of each topic some, whose words are those of its label and common ones."""
    left_out = ("Top/News", "Top/Regional", "Top/World")
    weights = [rng.randint(1, 9) ** 2 * (4 if topic.startswith(left_out) else 1) for topic in topics]
    for number, topic in enumerate(sorted(rng.choices(topics, weights, k=num_pages))):
        own = _WORDS[topic.split("/")[1]].split()
        common = _COMMON.split()
        shares = [0.35 / len(own)] * len(own) + [0.65 / len(common)] * len(common)
        title = " ".join(rng.choices(own + common, shares, k=rng.randint(2, 5)))
        text = " ".join(rng.choices(own + common, shares, k=rng.randint(4, 30)))
        text += rng.choice(_ODDITIES) if rng.random() < 0.05 else ""
        description = "" if rng.random() < 0.01 else _DESCRIPTION.format(f"{text.capitalize()}.")
        yield f'  <ExternalPage about="http://www.example.com/{number}?a=1&amp;b=2">\n'
        yield f"    <d:Title>{title.capitalize()}</d:Title>\n{description}"
        yield f"    <topic>{escape(topic)}</topic>\n  </ExternalPage>\n"


def _relations(topics: list[str], rng: random.Random) -> Iterator[str]:
    """Yield the topics with links to their parts, to two topics elsewhere, and to topics without pages."""
    children: dict[str, list[str]] = {}
    for topic in topics:
        children.setdefault(topic.rpartition("/")[0], []).append(topic)
    upper = [topic for topic in topics if topic.count("/") < 3]
    for number, topic in enumerate(topics):
        # half of the links lead to the two upper levels
        symbolic = rng.choice(upper if rng.random() < 0.5 else topics)
        related = rng.choice(upper if rng.random() < 0.5 else topics)
        links = [(f"narrow{('', 1, 2)[place % 3]}", child) for place, child in enumerate(children.get(topic, ()))]
        links += [(f"symbolic{number % 2 + 1}", f"Name:{symbolic}"), ("related", related)]
        links += [("related", f"{topic}/Without_Pages"), ("altlang", f"Deutsch:Top/World/Deutsch/{number}")]
        # some topics have pages and no entry of their own
        if topic in upper or rng.random() > 0.03:
            lines = "".join(f'    <{kind} r:resource="{escape(target)}"/>\n' for kind, target in links)
            yield f'  <Topic r:id="{escape(topic)}">\n{lines}  </Topic>\n'
