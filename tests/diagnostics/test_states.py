"""What an observer has seen goes on in a resumed fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.toys import Quadratic, fit_clients, quadratic_clients

from fl_lightning import FedAsync, FedAvg, VirtualClock
from fl_lightning.diagnostics import CentralTwin, LocalCompute, RoundObserver, Timeline, VirtualTime

#: What belongs to one round, or is set by a trainer.
OF_A_ROUND = {"log", "log_dict", "values", "_results"}


def virtual_time() -> VirtualTime:
    return VirtualTime(VirtualClock(10))


@pytest.mark.parametrize("make", [LocalCompute, Timeline, CentralTwin, virtual_time])
def test_a_checkpoint_holds_all_that_an_observer_has_seen(make: Callable[[], RoundObserver]) -> None:
    observer = make()
    algorithm = FedAsync(3) if isinstance(observer, Timeline) else FedAvg(1.0)
    fit_clients(algorithm, Quadratic(0.1), quadratic_clients([1.0] * 4, [1.0, 3.0, 2.0, 5.0]), 2, observer)
    resumed = make()
    changed = {name for name, value in vars(observer).items() if repr(value) != repr(vars(resumed).get(name))}
    resumed.load_state_dict(observer.state_dict())
    seen = {name: vars(observer)[name] for name in changed - OF_A_ROUND}
    assert seen
    assert {name: repr(vars(resumed)[name]) for name in seen} == {name: repr(value) for name, value in seen.items()}
