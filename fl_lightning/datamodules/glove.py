"""GloVe word vectors, and texts as rows of their table."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fl_lightning.datamodules.files import reading

PAD = 0
UNKNOWN = 1
SEPARATOR = 2
"""Rows of the table that stand before the words."""

_SPECIAL_ROWS = 3
_DETACHED = re.compile(r"``|[!?*_^&%$@~()\[\]{}/\\|\"`]")
_LEADING_QUOTE = re.compile(r"(?:^|(?<=\s))'(?=\S)")
_TRAILING_MARK = re.compile(r"(?:\.\.\.|[.,:;'])(?=[.,:;'\s]|$)")


@dataclass(frozen=True, eq=False)
class WordVectors:
    """A table of word vectors.

    Attributes:
        rows: Row of each word in the table; 3 for the first.
        vectors: float32, shape (3 + number of words, dimensions): zeros for padding, all ones for unknown words, all
            minus ones for the separator, then the words.
    """

    rows: dict[str, int]
    vectors: np.ndarray

    def encode(self, title: str, description: str) -> list[int]:
        """Return the rows of the title's words, the separator and the description's words.

        A text that is missing is one unknown word.
        """
        return [*self._rows_of(title), SEPARATOR, *self._rows_of(description)]

    def _rows_of(self, text: str) -> list[int]:
        rows = [self.rows.get(word, UNKNOWN) for word in tokenize(text)]
        return rows or [UNKNOWN]


def tokenize(text: str) -> list[str]:
    """Return the words of a text in lower case; each special character is a word.

    Brackets, slashes, quotation marks and the like are detached wherever they stand; full stops, commas, colons,
    semicolons and apostrophes where a word ends, so that 3.5 and o'clock stay whole. The apostrophes of "'s" and "n't"
    vanish (van Lier 2018, section 3.1.2, and its code).
    """
    text = text.lower().replace("\N{ACUTE ACCENT}", "'")
    text = _DETACHED.sub(r" \g<0> ", text)
    text = _LEADING_QUOTE.sub("' ", text)
    text = _TRAILING_MARK.sub(r" \g<0> ", text)
    return text.replace("n't", "nt").replace("'s", "s").split()


def read_word_vectors(path: str | os.PathLike[str]) -> WordVectors:
    """Read word vectors from a text file: a word and its numbers in each line, with spaces between.

    Args:
        path: The file, such as ``glove.6B.50d.txt`` with 400,000 words of 50 dimensions.

    Raises:
        FileNotFoundError: If there is no such file.
        RuntimeError: If the file is empty, or a line has others than numbers, or not as many as the first.
    """
    words: list[str] = []
    vectors: list[np.ndarray] = []
    with reading(path, "GloVe's word vectors"), Path(path).open("rb") as lines:
        line: bytes
        for line in tqdm(lines, desc=Path(path).name, unit=" words", leave=False, disable=None):
            # "replace" keeps a word that is not UTF-8 as one that no text has.
            word, *numbers = line.decode("utf-8", "replace").rstrip().split(" ")
            words.append(word)
            vectors.append(np.array(numbers, dtype=np.float32))
        table = np.stack(vectors)
    special = np.zeros((_SPECIAL_ROWS, table.shape[1]), dtype=np.float32)
    special[UNKNOWN] = 1
    special[SEPARATOR] = -1
    rows = {word: row for row, word in enumerate(words, start=_SPECIAL_ROWS)}
    return WordVectors(rows, np.vstack([special, table]))
