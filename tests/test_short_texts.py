"""Long names become short ones that differ."""

from __future__ import annotations

import random

import pytest

from fl_lightning.partitioners.short_texts import label, shortened, shortened_together


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("short", "short"),
        ("digits among three hundred clients of a long name", "digits among three…long name"),
        ("FedProx with mu 1e-05 and five clients per round", "FedProx with mu…per round"),
        ("a" * 40, "a" * 18 + "…" + "a" * 9),  # there is no end of a word
    ],
)
def test_a_name_is_cut_between_words(text: str, short: str) -> None:
    assert shortened(text, 28) == short


def test_names_keep_the_words_in_which_they_differ() -> None:
    rates = [f"FedAvg on hospital data with 5 clients per round and lr {rate}" for rate in (0.1, 0.2)]
    assert shortened_together(rates, 28) == ["FedAvg on hospital…lr 0.1", "FedAvg on hospital…lr 0.2"]
    shares = [f"FedProx with mu {mu} and five clients per round" for mu in ("0.1", "1e-05")]
    assert shortened_together(["FedAvg", *shares], 28) == ["FedAvg", "FedProx with mu 0.1…", "FedProx with mu 1e-05…"]


def test_different_names_stay_different() -> None:
    draw = random.Random(0)
    for _ in range(500):
        letters = draw.choice(["ab", "a b", "ab _…"])
        names = list({"".join(draw.choices(letters, k=draw.randrange(1, 90))) for _ in range(8)})
        short = shortened_together(names, 24)
        assert len(set(short)) == len(names)
        assert max(map(len, short)) <= 28  # four more for a number, where nothing else is left


def test_a_label_has_no_formula_and_one_line() -> None:
    assert label("_a $x$\nb") == r" _a \$x\$ b"
