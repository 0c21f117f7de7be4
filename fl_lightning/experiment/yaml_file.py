"""Reads YAML files, with errors that name the file and the line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
#: Numbers that YAML 1.1 takes for texts, for lack of a dot or of a sign.
_NUMBER_OR_TEXT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+")


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is no YAML, holds something else than a mapping, has a name twice in a mapping, contains
            itself, or has a number such as ``1e-3`` that YAML reads as a text.
    """
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        if node is not None:
            _check(node, path, set(), set())
        content = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ValueError(f"{path}{_place(mark)}: {error.problem or error.context}. It must be YAML.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as YAML in UTF-8: {error}.") from error
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply to be read.") from error
    if content is None:
        raise ValueError(f"{path} is empty. It must hold a mapping, lines such as `name: value`.")
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} must hold a mapping, got {type(content).__name__}. Write lines such as `name: value`."
        )
    return content


def _place(mark: Any) -> str:
    return "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"


def _check(node: Any, path: Path, above: set[int], seen: set[int]) -> None:
    """Check a node and all below it.

    Args:
        node: The node.
        path: The file.
        above: The nodes that contain this one.
        seen: All nodes that are checked already; an anchor makes one node appear in several places.
    """
    place = f"{path}{_place(node.start_mark)}"
    if id(node) in above:
        raise ValueError(f"{place}: this part contains itself by way of its anchor. Write it out, or use a `value`.")
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        if node.tag == _TEXT and node.style is None and _NUMBER_OR_TEXT.fullmatch(node.value):
            raise ValueError(
                f"{place}: YAML reads {node.value} as a text, not as a number. Write {_as_number(node.value)}, or put "
                "the text in quotes."
            )
        return
    below = node.value
    if isinstance(node, yaml.MappingNode):
        _check_names(node, path)
        below = [part for pair in node.value for part in pair]
    for part in below:
        _check(part, path, above | {id(node)}, seen)


def _as_number(text: str) -> str:
    """Return a number as YAML 1.1 wants it, with a dot and a sign of the exponent: ``1.0e+5`` for ``1e5``."""
    mantissa, _, exponent = text.lower().partition("e")
    whole = mantissa if "." in mantissa else f"{mantissa}.0"
    return f"{whole}e{exponent if exponent[0] in '+-' else f'+{exponent}'}"


def _check_names(node: Any, path: Path) -> None:
    """Raise ``ValueError`` if a mapping has a name twice; YAML would drop the first one in silence."""
    names: set[str] = set()
    for name, _ in node.value:
        if not isinstance(name, yaml.ScalarNode) or name.tag == _MERGE:
            continue
        if name.value in names:
            raise ValueError(f"{path}{_place(name.start_mark)}: {name.value!r} is there twice. Rename or remove one.")
        names.add(name.value)
