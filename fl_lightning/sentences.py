"""Words in sentences, and texts that several sentences have."""

from __future__ import annotations

from collections.abc import Sequence

#: How a module takes the weights of a checkpoint alone.
LOAD_WEIGHTS = '`module.load_state_dict(torch.load(path)["state_dict"])`'


def joined(words: Sequence[str], by: str = "and", most: int | None = None) -> str:
    """Return words as a list in a sentence: ``"a, b and c"``.

    Args:
        words: The words.
        by: What is before the last one.
        most: How many are shown, if there are more: ``"a, b and 3 more"``; all if ``None``.
    """
    others = 0 if most is None else len(words) - most
    shown = [*words[:most], f"{others} more"] if others > 1 else words
    return f" {by} ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)
