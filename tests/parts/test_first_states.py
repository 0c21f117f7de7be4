"""States of parts from round to round, and whose vector a client gets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.begun import MODEL, begun, shown

from fl_lightning import parts

NAN = math.nan


def test_a_client_gets_what_is_its_own_whatever_its_slot(subtests: pytest.Subtests) -> None:
    # Client 2 has other vectors than all others, and trains in slot 0.
    for options, of_task, expected in (
        ({"buffers": "local"}, {}, [1.0, 2.0, 3.0, 5.0]),
        ({"exchange": parts.PersonalParameters("head.bias")}, {}, [1.0, 2.0, 4.0, 4.0]),
        # What it knows differs by 1 in each parameter, of which the largest difference is sent.
        ({"exchange": parts.TopK(0.34, link="down")}, {}, [1.0, 3.0, 4.0, 4.0]),
        ({"exchange": parts.TopK(0.34, link="down")}, {"is_known": True}, [2.0, 3.0, 4.0, 4.0]),
        ({"schedule": parts.ProximalModels()}, {"phase": 1}, [2.0, 3.0, 4.0, 5.0]),
        # Its model and its shares differ by 1: a share of 2 goes twice the way back to what it receives.
        ({"schedule": parts.AdaptiveStart()}, {"phase": 1}, [0.0, 1.0, 2.0, 4.0]),
    ):
        with subtests.test(options=options):
            algorithm = begun(**options)
            for part in algorithm.run.parts:
                for vectors in part.client_vectors.values():
                    vectors[2] = vectors[2] + 1.0
            for slot, client, values in ((2, 0, MODEL), (0, 2, expected)):
                task = parts.Task(slot, client, 1, **of_task)
                started = algorithm.schedule.start(task, algorithm.received(task))
                assert started.tolist() == values


def test_the_process_of_a_task_is_that_of_its_model_or_of_its_client_s_vectors() -> None:
    task = parts.Task(1, 2, 1)
    for schedule, owner in ((parts.Synchronous(), None), (parts.Redistribution(2), 1), (parts.ProximalModels(), 0)):
        assert begun(schedule=schedule).run.owner(task, 2) == owner


def test_a_client_goes_on_with_its_own_optimizers_and_clusters_and_a_slot_with_its_model() -> None:
    optimizers = begun(optimizer_state="kept").optimizers
    optimizers.tensors[2] = torch.tensor([8.0])
    optimizers.numbers[2] = torch.tensor([9.0, 10.0])
    for slot, client, held in ((2, 0, ([5.0], [6.0, 7.0])), (0, 2, ([8.0], [9.0, 10.0]))):
        found = optimizers.of(parts.Task(slot, client, 1))
        assert found is not None
        assert (found.tensors.tolist(), found.numbers.tolist()) == held
    algorithm = begun(schedule=parts.Clusters(number=3))
    algorithm.schedule.models = [torch.full((4,), float(cluster)) for cluster in range(3)]
    algorithm.schedule.chosen = [0, 1, 2]
    tasks = [parts.Task(0, 2, 1), parts.Task(2, 0, 1), parts.Task(0, 2, 1, phase=1), parts.Task(2, 0, 1, phase=2)]
    assert [float(algorithm.received(task)[0]) for task in tasks] == [2.0, 0.0, 0.0, 1.0]
    algorithm = begun(schedule=parts.Redistribution(2))
    model = torch.zeros(4)
    algorithm.schedule.results = {0: parts.ClientResult(parts.Task(0, 1, 1), model, model, 1)}
    assert [algorithm.received(parts.Task(slot, 2 - slot, 1)).tolist() for slot in (0, 2)] == [[0.0] * 4, MODEL]


def test_what_a_client_has_answered_is_noted_for_it_whatever_its_slot() -> None:
    task = parts.Task(0, 2, 3)
    for exchange in (parts.StackMessages(), parts.TopK(0.5, link="down")):
        algorithm = begun(exchange=exchange)
        algorithm.run.begin_round(0)
        algorithm.chain.on_delivery(task, algorithm.server.model + 1.0)
        for part in algorithm.run.parts:
            part.on_round_end()
        if isinstance(exchange, parts.StackMessages):
            assert exchange.known == {2: 0}
        else:
            assert [exchange.kept[client].tolist() for client in range(3)] == [MODEL[:3], MODEL[:3], [2.0, 3.0, 4.0]]
    objective = parts.Prototypes()
    run = begun(objective=objective).run
    run.begin_round(0)
    # Of two classes: sums of two features over two samples, and none.
    sums = torch.tensor([[2.0, 4.0, 2.0], [0.0, 0.0, 0.0]])
    result = parts.ClientResult(task, run.server.model, run.server.model, 1)
    objective.take_state_up(task, {"sums": sums})
    objective.on_client_end(result)
    assert (objective.numbers_up(result), objective.state_up(result), list(objective.sent)) == (3, {"sums": sums}, [0])
    objective.on_arrival(1, 2, is_used=True)
    objective.on_arrival(2, 0, is_used=True)
    objective.on_round_end()
    assert (objective.sent, objective.numbers_down) == ({}, 2)
    np.testing.assert_equal(shown(objective.state_down(task)), {"means": [[1.0, 2.0], [NAN, NAN]]})
    objective.take_state_up(task, {"sums": 9 * sums})
    objective.on_client_end(result)
    objective.on_arrival(2, 0, is_used=False)
    objective.on_round_end()
    assert (objective.sent, shown(objective.means)[0]) == ({}, [1.0, 2.0])


def test_states_come_back_whole_though_lists_dicts_and_arrays_were_written_to() -> None:
    run = begun().run
    part = run.parts[-1]
    first = {"numbers": [1, 2], "nested": {"a": [3, 4], 5: {"b": [6, 7]}}, "array": np.arange(3), "vector": run.shown}
    for name, value in first.items():
        part.add_state(name, value)
    for _ in range(2):
        part.keep()
        state = shown(part.state_dict())
        part.numbers += [8]
        part.nested["a"][1] = 9
        part.nested[5]["b"].clear()
        part.array[1:] = 8
        part.vector = part.vector + 1.0
        part.put_back()
        assert part.numbers is not first["numbers"]
        assert shown(part.declared()) == state
        assert state == {
            "numbers": [1, 2],
            "nested": {"a": [3, 4], 5: {"b": [6, 7]}},
            "array": [0, 1, 2],
            "vector": MODEL,
        }
    part.load_state_dict({**part.state_dict(), "numbers": [4, 5, 6], "array": [7, 8]})
    assert (part.numbers, part.array.tolist(), type(part.array)) == ([4, 5, 6], [7, 8], np.ndarray)


def test_a_new_fit_forgets_the_states_of_the_last_one() -> None:
    schedule = parts.ClientAverage("all")
    algorithm = begun(schedule=schedule)
    schedule.evaluate = "active"
    parts.Run.begin(algorithm, algorithm.federation)
    assert schedule.declared() == {"shown": None}


def test_a_checkpoint_comes_back_in_the_module_s_type() -> None:
    run = begun().run
    run.server.model = run.server.model + 0.5
    run.shown = run.shown + 2.0
    single = replace(run.federation, model=run.federation.model.float())
    run.keep()
    state = run.state_dict()
    classes = "Chain BufferExchange UniformSampler Synchronous LocalObjective WeightedMean Mixing ClientOptimizers"
    assert list(state.pop("parts")) == [f"{place}-{name}" for place, name in enumerate(classes.split(" "))]
    assert {name: shown(value) for name, value in state.items()} == {
        "server": {"model": [1.5, 2.5, 3.5, 4.5], "moves": 0, "changing": []},
        "books": {"traffic": {"class of the record": "Traffic", **dict.fromkeys(vars(parts.Traffic()), 0)}},
        "shown": [3.0, 4.0, 5.0, 6.0],
        "shows_other": False,
        "first": MODEL,
        "names": ["head.weight", "head.bias", "count"],
        "lengths": [2, 1],
    }
    resumed = parts.Run.resume(run.algorithm, single, run.state_dict())
    models = (resumed.server.model, resumed.shown, resumed.federation.model)
    assert [model.dtype for model in models] == [torch.float32] * 3
    assert [model.tolist() for model in models] == [[1.5, 2.5, 3.5, 4.5], [3.0, 4.0, 5.0, 6.0], MODEL]
    resumed.server.model, resumed.shown = resumed.federation.model, resumed.federation.model
    resumed.put_back()
    assert [resumed.server.model.tolist(), resumed.shown.tolist()] == [models[0].tolist(), models[1].tolist()]
    # The module shows another model than the server's, until a user assigns one.
    run.round.published = run.shown
    run.end_round(run.shown)
    with pytest.raises(RuntimeError, match="holds another model than the server's"):
        parts.Run.resume(run.algorithm, run.federation, run.state_dict()).adopt(run.shown)
    parts.Run.go_on(run, replace(run.federation, model=run.shown + 1.0)).adopt(run.shown)


def test_a_fit_that_begins_with_the_model_that_was_shown_last_spends_on_it_again() -> None:
    exchange = parts.LocalDifferentialPrivacy(1.0, noise_multiplier=1.0, delta=0.01)
    run = begun(exchange=exchange, schedule=parts.ClientAverage("active")).run
    exchange.releases = {0.5: {0: 1}}
    run.shown = run.shown + 1.0
    again = replace(run.federation, model=run.shown.clone())
    with pytest.raises(ValueError, match="LocalDifferentialPrivacy has spent an epsilon of 6 on"):
        parts.Run.begin(run.algorithm, again, run)
    assert parts.Run.begin(run.algorithm, run.federation, run).server.model.tolist() == MODEL


def test_all_processes_keep_the_vectors_of_parts_that_they_call_alike() -> None:
    sampler: Any = parts.UniformSampler(2)
    sampler.noted = parts.Part()
    algorithm = begun(sampler=sampler, aggregation=parts.Median())
    alike = (algorithm.sampler, algorithm.sampler.noted, algorithm.server_optimizer, algorithm.aggregation)
    assert [part.federation.replicates for part in alike] == [True] * 4
    assert not algorithm.objective.federation.replicates
