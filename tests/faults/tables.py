"""The campaign of wrong tables: ``python -m tests.faults.tables --tables 415 --seed 0``.

Each is the small table of the tests with one change at a random place: an entry misspelt, removed, moved, or with a
value of another kind, or a file with bytes changed. ``fl-lightning run --dry-run`` gets it. An outcome is clear if the
error names the entry that was changed, or its class or argument; unclear if it is another error, a traceback, or more
than twenty lines; accepted if there is none. What is accepted is printed, since some changes are no mistakes.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import logging
import random
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import yaml
from helpers.small_table import small

from fl_lightning.command import main as command

#: Values of other kinds.
_VALUES: list[Any] = [None, -1, 0, 1e30, float("nan"), float("inf"), "x", "", [], [1], {}, {"x": 1}, True, "$nothing"]
_CLASSES = ["shutil.rmtree", "os.system", "builtins.print", "no.such.Class", "torch.nn.Linear", "fl_lightning"]


def rich_table() -> dict[str, Any]:
    """Return the small table with most kinds of entries."""
    table = small(folds=[0, 1], seeds=[0, 1], tuning={"search": "random", "count": 2, "folds": [0], "seeds": [0]})
    table["data"]["digits"] |= {
        "metric": {"name": "acc", "function": "fl_lightning.callbacks.client_metrics.accuracy"},
        "monitor": "val_acc_clients",
        "score": "test_acc_clients",
        "mode": "max",
        "targets": [0.5],
        "paper": {"FedAvg": 60.0, "RADFed": 1.0},
        "published": {"Others": {"FedAvg": {"score": 61.0, "sd": 0.5}}},
        "smoothing": 2,
    }
    table["methods"]["FedAvg"]["tune"] = {"lr": [0.01, 0.02]}
    table["methods"]["RADFed"]["take"] = {"lr": "FedAvg"}
    table["callbacks"] = [{"class_path": "fl_lightning.diagnostics.Communication", "init_args": {}}]
    return {**table, "baseline": "FedAvg", "select": "best on validation"}


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each entry of nested mappings and lists."""
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from places(value, (*path, key))


def change(table: dict[str, Any], rng: random.Random) -> tuple[str, list[str]]:
    """Change one entry; return what was done, and the words of which a clear error has one."""
    path = rng.choice(list(places(table)))
    holder: Any = table
    for key in path[:-1]:
        holder = holder[key]
    key = path[-1]
    words = [word for word in path if isinstance(word, str)]
    old = holder[key]
    kind = rng.choice(["misspell", "remove", "replace", "replace", "class", "move"])
    if kind == "misspell" and isinstance(key, str):
        place = rng.randrange(len(key))
        new = key[:place] + rng.choice("xyz_") + key[place + 1 :]
        holder[new] = holder.pop(key)
        return f"{path}: the name is {new!r}", [*words, new]
    if kind == "remove":
        del holder[key]
        return f"{path}: removed", words
    if kind == "class" and key == "class_path":
        holder[key] = rng.choice(_CLASSES)
        return f"{path}: {holder[key]}", [*words, holder[key]]
    if kind == "move":
        other = rng.choice([place for place in places(table) if isinstance(place[-1], str)])
        target: Any = table
        for step in other[:-1]:
            target = target[step]
        if target is not holder and not (isinstance(old, (dict, list)) and other[: len(path)] == path):
            target[str(key)] = holder.pop(key)
            return f"{path}: moved to {other[:-1]}", [*words, *map(str, other)]
    holder[key] = copy.deepcopy(rng.choice([value for value in _VALUES if repr(value) != repr(old)]))
    return f"{path}: {old!r} is {holder[key]!r}", [*words, str(holder[key])]


def change_bytes(text: bytes, rng: random.Random) -> tuple[bytes, str, list[str]]:
    """Add a few bytes to a file; return what was done, and the words of the line."""
    place = rng.randrange(len(text))
    new = rng.choice([b"\xff", b"\x00", b"\t", b"[", b"}", b": ", b"&a *a", b"!!binary ", b"---\n", b"[" * 3000])
    line = text[: text.find(b"\n", place)].rpartition(b"\n")[2].decode()
    return text[:place] + new + text[place:], f"byte {place} of {line!r}: {new[:12]!r}", re.findall(r"\w+", line)


def attempt(path: Path) -> tuple[Any, str]:
    """Return the status of a dry run, or the error that left it, and its error output."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            status: Any = command(["run", str(path), "--dry-run", "--output", str(path.parent / "out")])
        except SystemExit as end:
            status = end.code
        except BaseException as error:
            return error, ""
    return status, errors.getvalue()


def main(argv: list[str] | None = None) -> Counter[str]:
    """Return the numbers of clear and unclear errors, and of tables that were accepted."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.tables", description=__doc__)
    parser.add_argument("--tables", type=int, default=100, help="number of tables; default: 100")
    parser.add_argument("--seed", type=int, default=0, help="draws the changes; default: 0")
    options = parser.parse_args(argv)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rng, counts = random.Random(options.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        path = Path(folder) / "table.yaml"
        path.write_text(yaml.safe_dump(rich_table()))
        assert attempt(path)[0] == 0, attempt(path)
        for number in range(options.tables):
            table = rich_table()
            if number % 8:
                what, words = change(table, rng)
                path.write_text(yaml.safe_dump(table, sort_keys=False))
            else:
                content, what, words = change_bytes(yaml.safe_dump(table, sort_keys=False).encode(), rng)
                path.write_bytes(content)
                words.append(path.name)
            status, errors = attempt(path)
            text = " ".join(errors.split())
            if status == 0:
                outcome = "accepted"
            elif status in (1, 2) and errors.count("\n") <= 20 and any(word and word in text for word in words):
                outcome = "clear"
            else:
                outcome = "unclear"
            counts[outcome] += 1
            if outcome != "clear":
                print(f"{outcome}: {what}" + ("" if status == 0 else f" -> {status!r} {text[:300]}"), flush=True)
    print(", ".join(f"{counts[name]} {name}" for name in ("clear", "unclear", "accepted")))
    return counts


if __name__ == "__main__":
    main()
