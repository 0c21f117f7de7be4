"""Reads YAML files, with errors that name the file and the line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Refuses names that are twice in a mapping, of which YAML would drop the first one in silence."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE]
        for place, key in enumerate(keys):
            if any(key.value == earlier.value for earlier in keys[:place]):
                problem = f"{key.value!r} is there twice; rename or remove one"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        return node


# as in YAML 1.2; YAML 1.1 takes 1e-3 for a text, for lack of a dot
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is no YAML, holds something else than a mapping, or has a name twice in a mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"{path}{place}: {error.problem or error.context}. It must be YAML.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as YAML in UTF-8: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a mapping, lines such as `name: value`, got {type(content).__name__}.")
    return content
