"""DMOZ's pages as rows of word numbers: read from the dumps once, then mapped from a cache."""

from __future__ import annotations

import hashlib
import json
import warnings
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fl_lightning.datamodules.glove import PAD, read_word_vectors
from fl_lightning.datamodules.rdf import read_pages, read_relations
from fl_lightning.files import atomic_file, checksum, is_whole

_FORMAT = 4


class EncodedPages(NamedTuple):
    """The pages of the top-level topics that are not left out, N of them, in the dump's order.

    Attributes:
        tokens: Rows of the table of word vectors, int32, shape (N, max_tokens); mapped from disk.
        page_topics: Each page's place in ``topics``, int32, shape (N,).
        topics: Paths of the topics with pages or relations.
        relations: Places of related topics, each pair once, int64, shape (R, 2). A topic that is left out is replaced
            by the top-level topic above it.
        vectors: The table of word vectors, float32, shape (number of words, dimensions).
    """

    tokens: Tensor
    page_topics: Tensor
    topics: list[str]
    relations: Tensor
    vectors: Tensor


def encoded_pages(
    content: Path, structure: Path, vectors: Path, exclude: Sequence[str], max_tokens: int, cache_dir: Path
) -> EncodedPages:
    """Return the pages from the cache; if they are not there yet, read the dumps and put them there.

    The file of a cache is named after the content of the dumps and the settings, and appears whole or not at all.

    Args:
        content: ``content.rdf.u8``, plain or gzipped.
        structure: ``structure.rdf.u8``, plain or gzipped.
        vectors: GloVe's text file.
        exclude: Names of the top-level topics that are left out.
        max_tokens: Words of a page, separator included; longer texts are cut, shorter ones padded.
        cache_dir: Folder of the cache.

    Raises:
        RuntimeError: If a dump is damaged, or has no pages or relations of the topics asked for.
    """
    checksums = [checksum(content), checksum(structure), checksum(vectors)]
    made_of = json.dumps([_FORMAT, sorted(exclude), max_tokens, *checksums])
    digest = hashlib.sha256(made_of.encode()).hexdigest()
    path = cache_dir / f"{digest[:24]}.pt"
    if path.exists() and not is_whole(path):
        warnings.warn(f"The cache {path} does not agree with its checksums. It is made again.", stacklevel=2)
        path.unlink()
    if not path.exists():
        pages = _read(content, structure, vectors, exclude, max_tokens)
        with atomic_file(path) as temporary:
            torch.save(tuple(pages), temporary)
    # A step that writes to a mapped tensor writes to a copy of the page in memory.
    return EncodedPages(*torch.load(path, mmap=True))


def _read(content: Path, structure: Path, vectors: Path, exclude: Sequence[str], max_tokens: int) -> EncodedPages:
    words = read_word_vectors(vectors)
    topics = dict[str, int]()
    tokens = array("i")
    page_topics = array("i")
    num_cut = 0
    for topic, title, description in read_pages(content):
        label = top_level(topic)
        if label is None or label in exclude:
            continue
        numbers = words.encode(title, description)
        if len(numbers) > max_tokens:
            num_cut += 1
            numbers = numbers[:max_tokens]
        tokens.extend(numbers)
        tokens.extend([PAD] * (max_tokens - len(numbers)))
        page_topics.append(topics.setdefault(topic, len(topics)))
    if num_cut:
        warnings.warn(
            f"{num_cut:,} of {len(page_topics):,} pages have more than `max_tokens` {max_tokens} words and were cut.",
            stacklevel=2,
        )
    kept = {top_level(topic) for topic in topics}
    pairs = set[tuple[int, ...]]()
    for relation in read_relations(structure):
        labels = [top_level(topic) for topic in relation]
        if kept.isdisjoint(labels):
            continue
        places = []
        for topic, label in zip(relation, labels, strict=True):
            # More than half of the dump's topics are left out. Of those the ones of the top level are enough.
            short = topic if label in kept else f"Top/{label}"
            places.append(topics.setdefault(short, len(topics)))
        pairs.add(tuple(sorted(places)))
    if not pairs:
        raise RuntimeError(
            f"{content} and {structure} have no pages and relations of the same topics, other than "
            f"{', '.join(exclude) or 'none'}. Put DMOZ's two dumps of the same date there, or exclude fewer topics."
        )
    return EncodedPages(
        tokens=torch.frombuffer(tokens, dtype=torch.int32).view(-1, max_tokens),
        page_topics=torch.frombuffer(page_topics, dtype=torch.int32),
        topics=list(topics),
        relations=torch.tensor(sorted(pairs)),
        vectors=torch.from_numpy(words.vectors),
    )


def top_level(topic: str) -> str | None:
    """Return the name of the topic of the top level that a topic is or lies below: Arts, of ``"Top/Arts/Music"``."""
    if not topic.startswith("Top/"):
        return None
    name = topic.split("/")[1]
    return name or None
