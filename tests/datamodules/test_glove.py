from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_lightning.datamodules.glove import PAD, SEPARATOR, UNKNOWN, read_word_vectors, tokenize


def test_words_stand_behind_padding_unknown_and_separator(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_bytes("the 0.5 -1.25\n, 1 2\nçafé 3e-1 4\n\u0085 7 8\n".encode() + b"\xff 5 6\n")
    words = read_word_vectors(path)

    assert (PAD, UNKNOWN, SEPARATOR) == (0, 1, 2)
    assert words.rows == {"the": 3, ",": 4, "çafé": 5, "\u0085": 6, "\ufffd": 7}
    assert words.vectors.dtype == np.float32
    expected = [[0, 0], [1, 1], [-1, -1], [0.5, -1.25], [1, 2], [0.3, 4], [7, 8], [5, 6]]
    np.testing.assert_array_equal(words.vectors, np.array(expected, dtype=np.float32))
    # a text is its title, the separator and its description
    assert words.encode("The, the", "ÇAFÉ bar") == [3, 4, 3, 2, 5, 1]
    assert words.encode("The", "") == [3, 2, 1]
    assert words.encode("", " \n") == [1, 2, 1]


def test_special_characters_are_detached() -> None:
    for text, words in [
        ("Hello World", "hello world"),
        ("Tips (and tricks): A/B, C!", "tips ( and tricks ) : a / b , c !"),
        ("3.5 km. At 5:30; o'clock, well...", "3.5 km . at 5:30 ; o'clock , well ..."),
        ("New York's best, don't 'quote' me", "new yorks best , dont ' quote ' me"),
        ('It\u00b4s "so" ``fine``', 'its " so " `` fine ``'),
        ("e-mail: me@site.org?x=1&y=2", "e-mail : me @ site.org ? x=1 & y=2"),
        ("Etc., etc.", "etc . , etc ."),
        ("[a]{b}|c\\d~e^f*g_h%i$j", "[ a ] { b } | c \\ d ~ e ^ f * g _ h % i $ j"),
        ("", ""),
    ]:
        assert tokenize(text) == words.split()


@pytest.mark.realdata
def test_real_word_vectors(real_data: Path) -> None:
    words = read_word_vectors(real_data / "glove" / "glove.6B.50d.txt")

    assert words.vectors.shape[1] == 50
    assert len(words.vectors) == len(words.rows) + 3
    assert words.rows["the"] == 3
    np.testing.assert_allclose(words.vectors[3, :3], [0.418, 0.24968, -0.41242], rtol=1e-6)
    assert {"(", "'", "``", "...", "`", "&", "nt"} <= words.rows.keys()
