from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fl_lightning.datamodules.plays import (
    ALPHABET,
    encode,
    parse_gutenberg,
    parse_markdown,
    read_leaf,
    role_texts,
    sample_roles,
)

MARKDOWN = r"""# The Play

### SCENE I. A street.

_Enter ANNE_

**ANNE**
First line;
second line.

_Exit BOB, with
his men_

Third line.

**First Clown**
__\[Aside]_
One \--two-- _\[ ]_ three.

*Re-enter [all],
running.*

# ACT II

No one speaks this.

**FIRST CLOWN**
[Within]_
Four.
"""

GUTENBERG = """The Complete Works, by
William Shakespeare

1609

THE SONNETS

by William Shakespeare

  Thy love. No role of a poem
  Thy dove. Nor this

1603

FIRST PLAY


by William Shakespeare

Dramatis Personae

  KING OF FRANCE

ACT I. SCENE 1.

  Anne. In delivering my son
    from me.               Exit
Enter BOB

  BOB. Ay.

                    Flourish
  ANNE. No.

<<THIS ELECTRONIC VERSION
    IS COPYRIGHT>>

1590

THE COMEDY OF ERRORS

by William Shakespeare

ACT I. SCENE 1
A hall

AEGEON. Proceed, Solinus,
to procure my fall.

DUKE. Merchant.

<<THIS ELECTRONIC VERSION IS PROVIDED
WITH PERMISSION.  ELECTRONIC COPIES
MAY BE DISTRIBUTED>>

ACT II. SCENE 1
A street

1611

LAST PLAY

by William Shakespeare

  SOLO. Nobody answers.
"""


def decoded(codes: np.ndarray) -> str:
    return "".join(ALPHABET[code] for code in codes)


def test_the_alphabet_has_80_characters_and_anything_else_is_the_last():
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    # newline to ".", then digits from 11, ":;>?" from 21, capitals from 25, brackets, small letters from 53, and }
    assert encode("\n !\"&'(),-.").tolist() == list(range(11))
    assert encode("09:;>?AZ[]az}").tolist() == [11, 20, 21, 22, 23, 24, 25, 50, 51, 52, 53, 78, 79]
    assert encode("$~é—\U0001f600\ud800").tolist() == [79] * 6
    assert encode("").tolist() == []


@pytest.mark.parametrize("end", ["\n", "  \n"])
def test_markdown_speeches_without_headings_and_directions(tmp_path, end):
    path = tmp_path / "play.md"
    # A byte that is not UTF-8 is a character.
    path.write_bytes(MARKDOWN.replace("First line", "F\xefrst line").replace("\n", end).encode("latin-1"))
    anne = ["F\ufffdrst line;", "second line.", "Third line."]
    assert parse_markdown(path) == ("The Play", {"ANNE": anne, "FIRST CLOWN": ["One --two--  three.", "Four."]})


def test_gutenberg_speeches_as_leaf_reads_them():
    first = {"ANNE": ["In delivering my son", "from me.               Exit", "No."], "BOB": ["Ay.", "Flourish"]}
    second = {"AEGEON": ["Proceed, Solinus,", "to procure my fall."], "DUKE": ["Merchant."]}
    assert parse_gutenberg(GUTENBERG) == [("FIRST PLAY", first), ("THE COMEDY OF ERRORS", second)]


def test_roles_are_named_joined_and_filtered():
    line = "x" * 30
    play = ("A Play's", {"THE KING": [line, f"a   b  {line}", line], "SHORT": ["y"] * 5, "FEW": [line * 9] * 2})
    play[1]["EDGE"] = ["x" * 25, "x" * 25, "x" * 27]  # with the spaces 80 characters, which have no next one
    (role,) = role_texts([play], min_lines=3)
    assert role.name == "A_Play_s_THE_KING"
    assert decoded(role.text) == f"{line} a b {line} {line} "
    assert role.starts.tolist() == list(range(97 - 80))
    assert [role.name for role in role_texts([play], min_lines=2)] == ["A_Play_s_THE_KING", "A_Play_s_FEW"]


def test_a_share_of_the_samples_is_whole_roles_but_for_the_last():
    sizes = [10, 200, 30, 4, 100]
    roles = role_texts([("P", {f"R{number}": ["x" * (79 + size)] for number, size in enumerate(sizes)})], min_lines=1)
    # the draw of seed 0 is fixed: order of the roles 2, 4, 3, 0, 1; half of 344 samples
    assert np.random.default_rng(0).permutation(5).tolist() == [2, 4, 3, 0, 1]
    assert [len(role.starts) for role in sample_roles(roles, 0.5, np.random.default_rng(0))] == [10, 28, 30, 4, 100]


TEXT = "".join(ALPHABET[2 + (7 * i + i * i // 5) % 78] for i in range(300))


def leaf_file(path: Path, starts: dict[str, list[int]]) -> Path:
    data = {
        user: {"x": [TEXT[i : i + 80] for i in own], "y": [TEXT[i + 80] for i in own]} for user, own in starts.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"users": list(data), "num_samples": [len(own) for own in starts.values()], "user_data": data})
    )
    return path


def test_leafs_windows_are_laid_over_each_other(tmp_path):
    starts = {"A": [0, 1, 2, 5, 100, 219], "B": [7]}
    path = leaf_file(tmp_path / "all.json", starts)
    a, b = read_leaf([path], [])
    for role, own in ((a, starts["A"]), (b, starts["B"])):
        windows = [decoded(role.text[start : start + 81]) for start in role.starts]
        assert windows == [TEXT[start : start + 81] for start in own]
        assert role.test_from is None
    assert len(a.text) == 86 + 81 + 81


def test_leafs_training_and_test_files_are_told_apart(tmp_path):
    train = [leaf_file(tmp_path / "train" / f"{user}.json", {user: [0, 1, 2]}) for user in "AB"]
    starts = {"B": [30, 31], "C": [0], "D": []}
    test = [leaf_file(tmp_path / "test" / f"{user}.json", {user: own}) for user, own in starts.items()]
    a, b, c = read_leaf(train, test)
    assert (a.name, a.test_from) == ("A", None)
    assert (b.name, b.starts[b.starts >= b.test_from].tolist()) == ("B", [30, 31])
    assert (c.name, c.test_from) == ("C", 0)
