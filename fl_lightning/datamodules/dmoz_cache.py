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
    made_of = [_FORMAT, sorted(exclude), max_tokens, *map(checksum, (content, structure, vectors))]
    path = cache_dir / f"{hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:24]}.pt"
    if path.exists() and not is_whole(path):
        warnings.warn(f"The cache {path} does not agree with its checksums. It is made again.", stacklevel=2)
        path.unlink()
    if not path.exists():
        with atomic_file(path) as temporary:
            torch.save(tuple(_read(content, structure, vectors, exclude, max_tokens)), temporary)
    # a mapped tensor is copied where it is written to
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
        num_cut += len(numbers) > max_tokens
        tokens.extend(numbers[:max_tokens] + [PAD] * (max_tokens - len(numbers)))
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
        if not kept.isdisjoint(labels):
            # of the topics that are left out, more than half of the dump, those of the top level will do
            short = (t if label in kept else f"Top/{label}" for t, label in zip(relation, labels, strict=True))
            pairs.add(tuple(sorted(topics.setdefault(topic, len(topics)) for topic in short)))
    if not pairs:
        raise RuntimeError(
            f"{content} and {structure} have no pages and relations of the same topics, other than "
            f"{', '.join(exclude) or 'none'}. Put DMOZ's two dumps of the same date there, or exclude fewer topics."
        )
    rows = torch.frombuffer(tokens, dtype=torch.int32).view(-1, max_tokens)
    places = torch.frombuffer(page_topics, dtype=torch.int32)
    return EncodedPages(rows, places, list(topics), torch.tensor(sorted(pairs)), torch.from_numpy(words.vectors))


def top_level(topic: str) -> str | None:
    """Return the name of the topic of the top level that a topic is or lies below: Arts, of ``"Top/Arts/Music"``."""
    steps = topic.split("/", 2)
    return steps[1] if len(steps) > 1 and steps[0] == "Top" and steps[1] else None
