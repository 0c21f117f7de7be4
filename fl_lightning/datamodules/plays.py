"""Speaking roles and their text, read from play texts and from LEAF's files."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from fl_lightning.datamodules.files import reading

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters in LEAF's order; any other counts as the last one."""

WINDOW = 80
"""Characters of an input; the next one is its label."""

Play = tuple[str, dict[str, list[str]]]
"""Title, and each role's spoken lines; roles are in upper case."""

_UNKNOWN = len(ALPHABET) - 1
_CODES = np.full(128, _UNKNOWN, dtype=np.uint8)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))

# Stage directions, in underscores or single asterisks; they may run over lines, but not over an empty one. A few have
# lost their first underscore.
_DIRECTION = re.compile(
    r"\[[^\]\n]*\]_+|_+(?:[^_\n]|\n(?!\s*\n|\*\*))+_+|(?<!\*)\*(?!\*)(?:[^*\n]|\n(?!\s*\n))+\*(?!\*)"
)
_SPEAKER = re.compile(r"\*\*([^*]+)\*\*")

_POEMS = ("THE SONNETS", "A LOVER'S COMPLAINT")
#: The first line of a speech, the role and what it says, and the next ones.
_FIRST_LINE = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
_NEXT_LINE = re.compile(r"    (.*)")
_UNINDENTED_FIRST_LINE = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
_UNINDENTED_NEXT_LINE = re.compile(r"(.*)")
#: The only play of the edition whose speeches are not indented.
_UNINDENTED_PLAY = "THE COMEDY OF ERRORS"
_NOTICE = re.compile(r"<<.*?>>", re.DOTALL)


@dataclass(frozen=True, eq=False)
class RoleText:
    """The text of one role, and its windows that are samples.

    Attributes:
        name: The play and the role.
        text: Characters as positions in ``ALPHABET``, uint8, shape (length,).
        starts: First character of each window, ascending, int64.
        test_from: Start of the first window of the official test set; ``None`` if there is none.
    """

    name: str
    text: np.ndarray
    starts: np.ndarray
    test_from: int | None = None


def encode(text: str) -> np.ndarray:
    """Return characters as positions in ``ALPHABET``, uint8, shape (len(text),)."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    positions: np.ndarray = _CODES[np.minimum(codes, 127)]
    return positions


def read_text(path: Path | zipfile.Path) -> str:
    """Return a file's text; bytes that are not UTF-8 are not in the alphabet either."""
    return path.read_text(encoding="utf-8", errors="replace")


def parse_markdown(path: Path) -> Play:
    """Read a play: a line ``**ROLE**`` before each speech, headings, stage directions in ``_..._`` or ``*...*``.

    Args:
        path: The file, whose name is the title if there is no heading ``# ...``.

    Raises:
        ValueError: If nobody speaks.
    """
    title = None
    roles: dict[str, list[str]] = {}
    spoken: list[str] | None = None
    for line in _DIRECTION.sub("", read_text(path)).splitlines():
        line = line.strip()
        speaker = _SPEAKER.fullmatch(line)
        if speaker:
            spoken = roles.setdefault(speaker[1].strip().upper(), [])
        elif line.startswith("#"):
            # A heading ends the speech; the first one of the top level is the title.
            spoken = None
            if title is None and line.startswith("# "):
                title = line[2:].strip()
        elif spoken is not None:
            line = line.replace("\\", "").replace("_", "").strip()
            if line:
                spoken.append(line)
    if not roles:
        raise ValueError(
            f"{path} is not a play: it has no line **ROLE** before a speech. Put a play there, or remove it."
        )
    return path.stem if title is None else title, roles


def parse_gutenberg(text: str) -> list[Play]:
    """Read the plays of Project Gutenberg's complete works in the edition of 1994, as LEAF does.

    A play starts with its title above "by William Shakespeare"; a speech starts with two spaces and ``ROLE.``, and goes
    on in lines that are indented by four. As with LEAF, directions at the end of a line stay in; the copyright notices
    in the plays, one of which LEAF takes for a role, do not.
    """
    plays: list[Play] = []
    title = ""
    roles: dict[str, list[str]] = {}
    spoken: list[str] | None = None
    last_line = ""
    for line in _NOTICE.sub("", text).splitlines():
        if line.strip() == "by William Shakespeare":
            title = last_line
            roles = {}
            spoken = None
            plays.append((title, roles))
        elif plays and title not in _POEMS:
            spoken = _parse_line(line, roles, spoken, indented=title != _UNINDENTED_PLAY)
        if line.strip():
            last_line = line.strip()
    # A play has more than one role; a text with fewer is a poem or the file's preface.
    return [(title, roles) for title, roles in plays if len(roles) > 1]


def _parse_line(line: str, roles: dict[str, list[str]], spoken: list[str] | None, indented: bool) -> list[str] | None:
    """Add a line to the role that speaks it; return the lines of the role that may go on."""
    first = (_FIRST_LINE if indented else _UNINDENTED_FIRST_LINE).fullmatch(line)
    if first:
        role = first[1].upper()
        if not indented and role.startswith("ACT "):
            return None
        lines = roles.setdefault(role, [])
        lines.append(first[2].strip())
        return lines
    following = (_NEXT_LINE if indented else _UNINDENTED_NEXT_LINE).fullmatch(line)
    if spoken is not None and following and line.strip():
        spoken.append(following[1].strip())
    return spoken


def role_texts(plays: Iterable[Play], min_lines: int) -> list[RoleText]:
    """Return the roles that have at least ``min_lines`` lines and one window, in the order of the plays.

    A role's lines are joined with spaces, and several spaces count as one.
    """
    texts = []
    for title, roles in plays:
        for role, lines in roles.items():
            # LEAF puts a space after every line, the last one too.
            joined = "".join(f"{line} " for line in lines)
            text = encode(re.sub("  +", " ", joined))
            if len(lines) >= min_lines and len(text) > WINDOW:
                name = re.sub(r"\W+", "_", f"{title}_{role}")
                texts.append(RoleText(name, text, np.arange(len(text) - WINDOW)))
    return texts


def read_leaf(train: Sequence[Path], test: Sequence[Path]) -> list[RoleText]:
    """Read LEAF's JSON files: ``users`` and ``user_data``, by user, with strings ``x`` and characters ``y``.

    Windows that overlap are laid over each other, so that a role takes about one byte per window.

    Args:
        train: Files of all or of the training windows.
        test: Files of the test windows.

    Raises:
        RuntimeError: If a file is not of this format.
    """
    windows: dict[str, list[str]] = {}
    for path in train:
        for user, of_user in _leaf_windows(path):
            windows.setdefault(user, []).extend(of_user)
    num_train = {user: len(of_user) for user, of_user in windows.items()}
    for path in test:
        for user, of_user in _leaf_windows(path):
            windows.setdefault(user, []).extend(of_user)
    roles = []
    for user, of_user in windows.items():
        if of_user:
            roles.append(_lay_over(user, of_user, num_train.get(user, 0)))
    return roles


def sample_roles(roles: Sequence[RoleText], fraction: float, rng: np.random.Generator) -> list[RoleText]:
    """Draw whole roles until they have a share of all windows; the last role gives only its first windows.

    Args:
        roles: Roles to draw from; their order is kept.
        fraction: The share, rounded down to whole windows.
        rng: Generator of the draw.
    """
    wanted = int(fraction * sum(len(role.starts) for role in roles))
    drawn = list(roles)
    for place in rng.permutation(len(roles)).tolist():
        starts = roles[place].starts[:wanted]
        drawn[place] = replace(roles[place], starts=starts)
        wanted -= len(starts)
    return drawn


def _leaf_windows(path: Path) -> Iterable[tuple[str, list[str]]]:
    """Yield each user of a file with windows of 81 characters, the label last."""
    with reading(path, "one of LEAF's Shakespeare files, which its preprocess.sh makes"):
        document = json.loads(path.read_text(encoding="utf-8"))
        windows: dict[str, list[str]] = {}
        for user in document["users"]:
            samples = document["user_data"][user]
            windows[user] = [x + y for x, y in zip(samples["x"], samples["y"], strict=True)]
            if any(len(window) != WINDOW + 1 for window in windows[user]):
                raise ValueError(f"a sample must have {WINDOW} characters and the next one")
    return windows.items()


def _lay_over(name: str, windows: list[str], num_train: int) -> RoleText:
    """Return the text of which the windows are parts, in their order."""
    length = WINDOW + 1
    text = [windows[0]]
    starts = [0]
    for last, window in pairwise(windows):
        # Most windows start one character after the last one; a window that overlaps nothing starts behind it.
        step = 1
        while last[step:] != window[: length - step]:
            step += 1
        text.append(window[length - step :])
        starts.append(starts[-1] + step)
    test_from = starts[num_train] if num_train < len(starts) else None
    return RoleText(name, encode("".join(text)), np.array(starts, dtype=np.int64), test_from)
