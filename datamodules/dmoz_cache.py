"""DMOZ's pages as rows of word numbers: read from the dumps once, then mapped from a cache."""

from __future__ import annotations

import hashlib
import json
import warnings
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from fl_lightning.datamodules.glove import PAD, WordVectors, read_word_vectors
from fl_lightning.datamodules.rdf import read_pages, read_relations
from fl_lightning.files import atomic_folder, checksum

_FORMAT = 2
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class DumpSource:
    """The files from which the pages are read, and the settings.

    Attributes:
        content: ``content.rdf.u8``, plain or gzipped.
        structure: ``structure.rdf.u8``, plain or gzipped.
        word_vectors: GloVe's text file.
        exclude: Names of the top-level topics that are left out.
        max_tokens: Words of a page, separator included; longer texts are cut, shorter ones padded.
    """

    content: Path
    structure: Path
    word_vectors: Path
    exclude: tuple[str, ...]
    max_tokens: int

    def key(self) -> str:
        """Return a text of 64 hexadecimal digits that changes with any file's content and any setting."""
        settings = [_FORMAT, sorted(self.exclude), self.max_tokens]
        sums = [checksum(path) for path in (self.content, self.structure, self.word_vectors)]
        return hashlib.sha256(json.dumps([settings, sums]).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class EncodedPages:
    """The pages of the top-level topics that are not left out, N of them, in the dump's order.

    Attributes:
        tokens: Rows of the table of word vectors, int32, shape (N, max_tokens); mapped from disk.
        page_topics: Each page's topic, int32, shape (N,).
        topics: Paths of the topics with pages or relations.
        relations: Pairs of related topics, each once, int32, shape (R, 2). A topic that is left out is replaced by
            the top-level topic above it.
        vectors: The table of word vectors, float32, shape (number of words, dimensions).
    """

    tokens: np.ndarray
    page_topics: np.ndarray
    topics: list[str]
    relations: np.ndarray
    vectors: np.ndarray

    def topic_counts(self) -> dict[str, int]:
        """Return the number of pages of each topic that has pages."""
        counts = np.bincount(self.page_topics, minlength=len(self.topics))
        return {self.topics[topic]: int(counts[topic]) for topic in np.flatnonzero(counts)}

    def related_topics(self) -> Iterator[tuple[str, str]]:
        """Yield the paths of the related topics."""
        for a, b in self.relations.tolist():
            yield self.topics[a], self.topics[b]


def encoded_pages(source: DumpSource, cache_dir: Path) -> EncodedPages:
    """Return the pages from the cache; if they are not there yet, read the dumps and put them there.

    The folder of a cache is named after the content of the dumps and the settings, and appears whole or not at all.

    Raises:
        RuntimeError: If a dump is damaged, or has no pages or relations of the topics asked for.
    """
    folder = cache_dir / source.key()[:24]
    if not folder.exists():
        _build(source, folder)
    return EncodedPages(
        # copied on write, for torch takes writable arrays only
        tokens=np.memmap(folder / "tokens.bin", dtype="<i4", mode="c").reshape(-1, source.max_tokens),
        page_topics=np.load(folder / "page_topics.npy"),
        topics=json.loads((folder / "topics.json").read_text(encoding="utf-8")),
        relations=np.load(folder / "relations.npy"),
        vectors=np.load(folder / "vectors.npy"),
    )


def _build(source: DumpSource, folder: Path) -> None:
    with atomic_folder(folder) as temporary:
        word_vectors = read_word_vectors(source.word_vectors)
        topics: dict[str, int] = {}
        pages = _encode(source, word_vectors, topics)
        page_topics = _write_tokens(pages, source.max_tokens, temporary / "tokens.bin")
        if len(page_topics) == 0:
            raise RuntimeError(
                f"{source.content} has no pages of topics other than {', '.join(source.exclude) or 'none'}. Put "
                "DMOZ's content.rdf.u8 there, or exclude fewer topics."
            )
        relations = _read_relations(source, topics)
        if len(relations) == 0:
            raise RuntimeError(
                f"{source.structure} has no relations of the topics of {source.content}. Put DMOZ's structure.rdf.u8 "
                "of the same date there."
            )
        np.save(temporary / "page_topics.npy", page_topics)
        np.save(temporary / "relations.npy", relations)
        np.save(temporary / "vectors.npy", word_vectors.vectors)
        (temporary / "topics.json").write_text(json.dumps(list(topics)), encoding="utf-8")


def _encode(source: DumpSource, words: WordVectors, topics: dict[str, int]) -> Iterator[tuple[list[int], int]]:
    """Yield the words and the topic of each page that is not left out, as numbers; number new topics."""
    for page in read_pages(source.content):
        label = top_level(page.topic)
        if label is not None and label not in source.exclude:
            yield words.encode(page.title, page.description), topics.setdefault(page.topic, len(topics))


def _write_tokens(pages: Iterator[tuple[list[int], int]], max_tokens: int, path: Path) -> np.ndarray:
    """Write the pages' words block by block; return each page's topic, shape (N,)."""
    page_topics = array("i")
    num_cut = 0
    with path.open("wb") as file:
        while block := list(islice(pages, _BLOCK_ROWS)):
            rows = np.full((len(block), max_tokens), PAD, dtype="<i4")
            for row, (numbers, topic) in zip(rows, block, strict=True):
                row[: len(numbers)] = numbers[:max_tokens]
                page_topics.append(topic)
                num_cut += len(numbers) > max_tokens
            file.write(rows.tobytes())
    if num_cut:
        warnings.warn(
            f"{num_cut:,} of {len(page_topics):,} pages have more than `max_tokens` {max_tokens} words and were cut.",
            stacklevel=2,
        )
    return np.array(page_topics, dtype=np.int32)


def _read_relations(source: DumpSource, topics: dict[str, int]) -> np.ndarray:
    """Return the pairs of related topics of which at least one is kept; number topics without pages as well."""
    kept = {top_level(topic) for topic in topics}
    pairs = array("q")
    for relation in read_relations(source.structure):
        labels = [top_level(topic) for topic in relation]
        if not kept.isdisjoint(labels):
            # of the topics that are left out, more than half of the dump, those of the top level will do
            short = (t if label in kept else f"Top/{label}" for t, label in zip(relation, labels, strict=True))
            a, b = sorted(topics.setdefault(topic, len(topics)) for topic in short)
            pairs.append(a << 32 | b)
    unique = np.unique(np.array(pairs, dtype=np.int64))
    relations: np.ndarray = np.stack([unique >> 32, unique & 0xFFFFFFFF], axis=1).astype(np.int32)
    return relations


def top_level(topic: str) -> str | None:
    """Return the name of the topic of the top level that a topic is or lies below: Arts, of ``"Top/Arts/Music"``."""
    steps = topic.split("/", 2)
    return steps[1] if len(steps) > 1 and steps[0] == "Top" and steps[1] else None
