"""Arrays of users and vectors of parts: what is taken for what, and what is refused with which values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_lightning.parts import Median
from fl_lightning.vectors import checked_vector, is_finite, pieces, share_of, sum_dtype, to_array, to_indices

LIKE = torch.zeros(3, dtype=torch.float64)


WHOLE = [1 - 2**63, 2**63 - 1]


@pytest.mark.parametrize("given", [[], torch.ones(2, requires_grad=True).long(), np.array(WHOLE, dtype=object)])
def test_arrays_of_whole_numbers_hold_integers(given: Any) -> None:
    array = to_array("labels", given)
    assert (array.dtype, array.tolist()) == (np.int64, list(given))
    for other in (2**63, True, None):
        assert to_array("labels", np.array([1, other], dtype=object)).dtype == object


def checked(returned: Any) -> Tensor:
    return checked_vector(Median(), "merge", returned, LIKE, finite=2)


@pytest.mark.parametrize(
    ("make", "given", "error", "shown"),
    [
        (to_array, [[1], [2, 3]], TypeError, ["`labels`", "got [[1], [2, 3]] (setting"]),
        (to_indices, [True, False], TypeError, ["`labels`", "got bool of shape (2,). Give `numpy.flatnonzero"]),
        (checked, None, TypeError, ["`Median.merge` must", "shape (3,) on cpu, got None."]),
        (checked, torch.zeros(3, dtype=torch.int64), TypeError, ["got torch.int64 of shape (3,)."]),
        (checked, torch.zeros(3).to_sparse(), TypeError, ["got torch.float32 of shape (3,)."]),
        (checked, torch.zeros(3, device="meta"), TypeError, ["shape (3,) on cpu"]),
        (checked, torch.tensor([1.0, torch.nan, 1.0]), FloatingPointError, ["`Median.merge` returned NaN"]),
    ],
)
def test_what_is_no_array_or_vector_is_refused(make: Any, given: Any, error: Any, shown: list[str]) -> None:
    with pytest.raises(error) as caught:
        make(*([] if make is checked else ["labels"]), given)
    assert [each for each in shown if each not in str(caught.value)] == []


def test_a_vector_that_is_returned_has_the_type_that_is_asked_for_and_no_graph() -> None:
    last_is_nan = nn.Parameter(torch.tensor([1.0, 2.0, torch.nan]))
    found = checked_vector(Median(), "merge", last_is_nan, LIKE, finite=2)
    assert (type(found), found.dtype, found.requires_grad) == (Tensor, torch.float64, False)
    assert checked_vector(Median(), "merge", last_is_nan, LIKE, dtype=torch.float16).dtype == torch.float16
    assert checked_vector(Median(), "merge", LIKE, LIKE) is LIKE


def test_sums_and_pieces_of_vectors() -> None:
    assert share_of(0.29, 100) == 29
    # The sum of these is infinite in single precision.
    assert is_finite(torch.tensor([3e38, 3e38]))
    assert not is_finite(torch.tensor([1.0, torch.inf]))
    assert sum_dtype(LIKE) == torch.float64
    assert [(len(a), len(b)) for a, b in pieces(*torch.zeros(2, 2**16))] == [(2**16, 2**16)]
    assert [(len(a), len(b)) for a, b in pieces(*torch.zeros(2, 2**16 + 1))] == [(2**16, 2**16), (1, 1)]
