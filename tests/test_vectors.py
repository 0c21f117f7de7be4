"""Arrays of users and vectors of parts: what is taken for what, and what is refused with which values."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_lightning.parts import Median
from fl_lightning.vectors import checked_vector, is_finite, pieces, share_of, to_array, to_indices

LIKE = torch.zeros(3, dtype=torch.float64)
LAST_IS_NAN = nn.Parameter(torch.tensor([1.0, 2.0, torch.nan]))
checked = partial(checked_vector, Median(), "merge", like=LIKE, finite=2)


def test_arrays_of_whole_numbers_hold_integers() -> None:
    for given in ([], torch.ones(2, requires_grad=True).long(), np.array([1 - 2**63, 2**63 - 1], dtype=object)):
        assert (to_array("labels", given).dtype, to_array("labels", given).tolist()) == (np.int64, list(given))
    for other in (2**63, True, None):
        assert to_array("labels", np.array([1, other], dtype=object)).dtype == object


@pytest.mark.parametrize(
    ("make", "given", "error", "shown"),
    [
        (partial(to_array, "labels"), [[1], [2, 3]], TypeError, ["`labels`", "got [[1], [2, 3]] (setting"]),
        (partial(to_indices, "labels"), [True], TypeError, ["`labels`", "bool of shape (1,). Give `numpy.flatnonzero"]),
        (checked, 5, TypeError, ["`Median.merge` must", "shape (3,) on cpu, got 5."]),
        (checked, torch.zeros(3, dtype=torch.int64), TypeError, ["got torch.int64 of shape (3,)."]),
        (checked, torch.zeros(3).to_sparse(), TypeError, ["got torch.float32 of shape (3,)."]),
        (checked, torch.zeros(3, device="meta"), TypeError, ["shape (3,) on cpu"]),
        (checked, torch.tensor([1.0, torch.nan, 1.0]), FloatingPointError, ["`Median.merge` returned NaN"]),
    ],
)
def test_what_is_no_array_or_vector_is_refused(make: Any, given: Any, error: Any, shown: list[str]) -> None:
    with pytest.raises(error) as caught:
        make(given)
    assert [each for each in shown if each not in str(caught.value)] == []


def test_a_vector_has_the_type_that_is_asked_for_and_no_graph() -> None:
    found = checked(LAST_IS_NAN)
    assert (type(found), found.dtype, found.requires_grad, checked(LIKE) is LIKE) == (
        Tensor,
        torch.float64,
        False,
        True,
    )
    assert checked_vector(Median(), "merge", LAST_IS_NAN * torch.nan, LIKE, dtype=torch.float16).dtype == torch.float16


def test_sums_and_pieces_of_vectors() -> None:
    # The sum of the first two is infinite in single precision.
    assert (is_finite(torch.tensor([3e38, 3e38])), is_finite(torch.tensor([1.0, torch.inf]))) == (True, False)
    assert share_of(0.29, 100) == 29
    for length, parts in ((2**16, [2**16]), (2**16 + 1, [2**16, 1])):
        assert [[len(own) for own in piece] for piece in pieces(*torch.zeros(2, length))] == [[n, n] for n in parts]
