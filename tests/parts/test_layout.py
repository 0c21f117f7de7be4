"""The order of a module's tensors in one flat vector."""

from __future__ import annotations

import pytest
import torch

from fl_lightning.parts import Layout, Payload

#: Values 0 to 3 are the trained weight and bias, 4 and 5 two buffers.
LAYOUT = Layout.of(
    {
        "head.weight": torch.zeros(1, 3),
        "head.bias": torch.zeros(1, dtype=torch.float16),
        "mean": torch.zeros(()),
        "count": torch.zeros((), dtype=torch.int64),
    },
    num_trained=2,
)
MODEL = torch.arange(6.0)


def test_parameters_and_buffers_of_a_model() -> None:
    parameters, buffers = LAYOUT.split(MODEL)
    assert (parameters.tolist(), buffers.tolist()) == ([0.0, 1.0, 2.0, 3.0], [4.0, 5.0])
    joined = LAYOUT.joined(parameters.half(), buffers)
    assert (joined.dtype, joined.tolist()) == (torch.float16, MODEL.tolist())
    assert (LAYOUT.trained, LAYOUT.buffers) == (("head.weight", "head.bias"), ("mean", "count"))


def test_views_of_a_model_and_of_its_parameters_alone() -> None:
    views = {name: view.tolist() for name, view in LAYOUT.named(MODEL).items()}
    assert views == {"head.weight": [[0.0, 1.0, 2.0]], "head.bias": [3.0], "mean": 4.0, "count": 5.0}
    assert list(LAYOUT.named(MODEL[:4])) == ["head.weight", "head.bias"]


def test_places_and_masks_of_names() -> None:
    assert LAYOUT.matching("head") == ["head.weight", "head.bias"]
    assert LAYOUT.places(["*.bias", "mean"]) == {1}
    assert LAYOUT.mask(["head.bias", "count"]).tolist() == [False, False, False, True, False, True]
    for patterns in ("body", []):
        with pytest.raises(ValueError, match="`mixed` must match"):
            LAYOUT.matching(patterns, "mixed")
    assert Layout.of_parameters(2, 1).places(["1"]) == {1}


def test_a_message_counts_each_number_in_its_own_type() -> None:
    assert LAYOUT.payload([0]) == Payload(3, 32)
    assert [LAYOUT.payload(places).bits for places in ([0, 1], [3])] == [3 * 32 + 16, 64]
    # 26 times the quotient, rounded to a float, is more than 864
    assert Layout(("a", "b"), (torch.Size([1]), torch.Size([25])), 2, (64, 32)).payload([0, 1]).bits == 864
    assert LAYOUT.payload([]) == Payload(0, 0)
