from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_files import set_up as ready
from helpers.toys import Watched, quiet_trainer
from helpers.written import assert_as_in
from torch.utils.data import TensorDataset

from fl_lightning import FedAvg, FederatedDataModule
from fl_lightning.data import FederatedSplit, SampleSplit, Source, Split, WithinClientSplit
from fl_lightning.partitioners import DirichletPartitioner, IIDPartitioner, Partition, add_feature_noise

# Five clients of 4, 3, 2, 2 and 1 samples: 4 and 0 train, in this order, 1 and 3 validate, 2 tests.
CLIENTS = [[0, 5, 7, 11], [1, 2, 3], [4, 6], [8, 9], [10]]
LABELS = np.array([0, 1] * 6)


class FixedPartitioner:
    def __call__(self, labels: np.ndarray) -> Partition:
        return Partition(tuple(np.array(samples, dtype=np.int64) for samples in CLIENTS))


class FixedSplit(Split):
    def __init__(self, train=(4, 0), val=(1, 3), test=(2,)) -> None:
        self.stages = train, val, test

    def split(self, labels, partitioner, test_indices) -> FederatedSplit:
        partition = partitioner(labels)
        train, val, test = ({client: partition.indices[client] for client in stage} for stage in self.stages)
        return FederatedSplit(train, val, test, partition)


class Rows(FederatedDataModule):
    """Sample i has the inputs (i, 100) and the label i mod 2."""

    def __init__(self, *args, dtype: torch.dtype = torch.float32, **kwargs) -> None:
        super().__init__(*args, **{"split": FixedSplit(), "batch_size": 3, **kwargs})
        self.dtype = dtype
        self.loads = 0

    def load(self) -> Source:
        self.loads += 1
        x = torch.stack([torch.arange(12), torch.full((12,), 100)], dim=1).to(self.dtype)
        return Source(TensorDataset(x, torch.from_numpy(LABELS)), LABELS, class_names=("even", "odd"))


class Listed(FederatedDataModule):
    """Samples that are no tensors, without labels."""

    def load(self) -> Source:
        samples = [{"index": index} for index in range(12)]
        return Source(samples, collate_fn=lambda batch: [sample["index"] for sample in batch])


def rows(**kwargs) -> FederatedDataModule:
    return ready(Rows(FixedPartitioner(), **kwargs))


def samples(batches) -> list[list[int]]:
    return [x[:, 0].int().tolist() for x, _ in batches]


# ---- training clients ----


def test_training_clients_are_those_of_the_split():
    data = rows()
    assert data.num_clients == 2
    assert data.client_ids == [4, 0]
    assert data.client_sizes.tolist() == [1, 4]
    assert [data.client_dataset(1)[i][0][0] for i in range(4)] == [0, 5, 7, 11]


def test_batches_of_a_client_are_shuffled_by_the_generator_alone():
    data = rows()
    first, again = (samples(data.client_batches(1, generator=torch.Generator().manual_seed(2))) for _ in range(2))
    other = samples(data.client_batches(1, generator=torch.Generator().manual_seed(3)))
    assert first == again != other
    assert sorted(first[0] + first[1]) == [0, 5, 7, 11]
    assert samples(data.client_batches(1, generator=torch.Generator(), shuffle=False)) == [[0, 5, 7], [11]]


def test_samples_that_are_no_tensors_go_through_the_sources_collate_fn():
    data = ready(Listed(FixedPartitioner(), split=FixedSplit(), batch_size=3, shuffle=False))
    assert list(data.client_batches(1, generator=torch.Generator())) == [[0, 5, 7], [11]]
    assert list(data.val_dataloader()) == [[1, 2, 3, 8, 9]]


# ---- pooled sets ----


def test_pooled_training_set_holds_all_training_clients():
    data = rows()
    assert sorted(chain(*samples(data.train_dataloader()))) == [0, 5, 7, 10, 11]
    assert samples(rows(shuffle=False).train_dataloader()) == [[10, 0, 5], [7, 11]]
    assert len(rows(batch_size=None).train_dataloader()) == 1
    assert sorted(chain(*samples(data.pooled_batches([1, 0], generator=torch.Generator())))) == [0, 5, 7, 10, 11]
    # who trains may be tested on the same samples, too
    assert rows(split=FixedSplit(test=(4, 0, 2))).num_unused == 0


def test_evaluation_sets_are_ordered_by_client():
    data = rows(eval_batch_size=4)
    assert samples(data.val_dataloader()) == [[1, 2, 3, 8], [9]]
    assert data.eval_client_ids("val").tolist() == [1, 1, 1, 3, 3]
    assert samples(data.test_dataloader()) == [[4, 6]]
    assert data.eval_client_ids("test").tolist() == [2, 2]
    assert samples(data.predict_dataloader()) == [[4, 6]]


# ---- the partition ----


def test_without_labels_there_are_sizes_alone():
    data = ready(Listed(FixedPartitioner(), split=FixedSplit()))
    statistics, (_, axes, table) = data.statistics(), data.plot()
    assert (data.labels, data.class_names, axes.get_legend(), statistics.has_classes) == (None, None, None, False)
    # The squares of the differences from the mean 2.4 sum to 5.2.
    shown = {"num_clients": 5, "num_samples": 12, "min": 1, "max": 4, "mean": 2.4, "std": pytest.approx(1.04**0.5)}
    assert statistics.as_dict() == shown
    assert "C-score" not in str(statistics)
    assert table["samples"].sort_index().tolist() == [4, 3, 2, 2, 1]


def test_all_that_is_told_of_clients(tmp_path: Path) -> None:
    data, plot = rows(), rows().plot()
    named = ready(OfWriters(test_indices=[0, 3]))
    left_over = ready(Rows(DirichletPartitioner(11, 1.0), split=WithinClientSplit(0.0, 0.0)))
    told = [
        *(str(data), data.describe_clients(), repr(data.describe_unused())),
        f"{data.present_class_names}\n{data.statistics()}",
        # Clients of a set stand together, the largest first.
        f"{plot.table.to_dict('tight')} {[text.get_text() for text in plot.axes.texts]}",
        *(named.describe_clients(), str([tick.get_text() for tick in named.plot().axes.get_xticklabels()])),
        f"{left_over.num_unused}: {left_over.describe_unused()} {list(left_over.plot().axes.texts)}",
        ready(OfWriters(lambda labels: [range(6)])).describe_clients(),
        ready(OfWriters(lambda labels: [range(4)])).describe_unused(),
    ]
    assert_as_in(Path(__file__).with_suffix(".txt"), told, tmp_path)


# ---- standardisation ----


# ---- replaced inputs ----


def test_feature_noise_spares_the_first_client_and_categorical_features():
    class Mixed(Rows):
        standardized_features = slice(0, 1)

    (partitioner := FixedPartitioner()).seed = 3
    x, noisy = (ready(Mixed(partitioner, feature_noise=level)).source_inputs() for level in (0.0, 0.4))
    assert torch.equal(noisy[:, :1], add_feature_noise(x[:, :1], partitioner(LABELS), 0.4, seed=3))
    assert torch.equal(noisy[:, 1], x[:, 1])


def test_replaced_inputs_are_served_until_the_stage_ends():
    data = rows(shuffle=False)
    raw = data.source_inputs()
    for end in (lambda: data.teardown("fit"), lambda: data.on_exception(KeyboardInterrupt())):
        data.replace_inputs(-data.source_inputs())
        data.shares_evaluation = True
        assert data.inputs_replaced
        assert samples(data.client_batches(1, generator=torch.Generator())) == [[0, -5, -7], [-11]]
        assert samples(data.val_dataloader()) == [[-1, -2, -3, -8, -9]]
        assert torch.equal(data.source_inputs(), raw)
        end()
        assert not data.inputs_replaced
        assert not data.shares_evaluation
        assert samples(data.client_batches(1, generator=torch.Generator())) == [[0, 5, 7], [11]]


# ---- in a Trainer ----


@pytest.mark.parametrize("callbacks", [[], [FedAvg(clients_per_round=2, seed=0)]])
def test_a_trainer_trains_centrally_without_an_aggregation_callback_and_federatedly_with_one(callbacks):
    data, module = Rows(FixedPartitioner()), Watched(2, 2)
    fit = quiet_trainer(callbacks=callbacks, max_epochs=2, num_sanity_val_steps=0)
    fit.fit(module, datamodule=data)
    fit.test(module, datamodule=data, verbose=False)
    fit.predict(module, datamodule=data)
    assert data.loads == 1
    seen = {stage: torch.cat(inputs)[:, 0].tolist() for stage, inputs in module.seen.items()}
    assert sorted(seen.pop("training")) == sorted([0, 5, 7, 10, 11] * 2)
    assert seen == {"validation": [1, 2, 3, 8, 9] * 2, "test": [4, 6], "predict": [4, 6]}


# ---- errors ----


@pytest.mark.parametrize(("without", "stage"), [("test", "test"), ("test", "predict"), ("val", "test")])
def test_a_trainer_without_test_samples_says_so(without: str, stage: str, recwarn: pytest.WarningsRecorder) -> None:
    data = Rows(FixedPartitioner(), split=FixedSplit(**{without: ()}))
    getattr(quiet_trainer(), stage)(Watched(2, 2), datamodule=data)
    assert any("no test samples" in str(warning.message) for warning in recwarn) == (without == "test")


def test_before_setup_nothing_is_known_of_clients():
    for name in ("num_clients", "client_ids", "client_sizes", "partition", "labels", "class_names"):
        with pytest.raises(RuntimeError, match=r"clients of Rows are known after `setup\(\)`"):
            getattr(Rows(FixedPartitioner()), name)


def test_a_split_without_training_clients_is_refused() -> None:
    data = Rows(FixedPartitioner(), split=FixedSplit(train=(), val=(1, 3), test=(2,)))
    with pytest.raises(ValueError, match="The split leaves no client for training"):
        data.setup()


class OfWriters(FederatedDataModule):
    """Sample i has the input i and comes from the writer of its place."""

    writers = np.array(["eva", "ali", "eva", "tom", "ali", "eva"], dtype=object)

    def __init__(self, *args, test_indices=None, tests_clients: bool = True, **kwargs) -> None:
        super().__init__(*args, **{"split": WithinClientSplit(0.0, 0.0), "batch_size": None, **kwargs})
        self.of_test = {"test_indices": test_indices, "tests_clients": tests_clients}

    def load(self) -> Source:
        x = torch.arange(6.0)
        return Source(
            TensorDataset(x[:, None], x.long() % 2), x.long().numpy() % 2, clients=self.writers, **self.of_test
        )


def test_samples_belong_to_the_clients_that_the_source_names() -> None:
    data = ready(OfWriters())
    assert data.client_names == ["ali", "eva", "tom"]
    assert [indices.tolist() for indices in data.partition.indices] == [[1, 4], [0, 2, 5], [3]]
    [[x, _]] = data.client_batches(1, generator=torch.Generator(), shuffle=False)
    assert sorted(x[:, 0].tolist()) == [0, 2, 5]


def test_a_partitioner_goes_before_the_clients_of_the_source() -> None:
    data = ready(OfWriters(IIDPartitioner(2)))
    assert (data.num_clients, data.num_unused, data.client_names) == (2, 0, None)


def test_test_samples_belong_to_their_clients_unless_the_source_says_otherwise() -> None:
    split = ready(OfWriters(test_indices=[4, 0, 1])).federated_split
    # Ali has no other sample, so he trains on none and comes last
    assert [(client, sorted(indices)) for client, indices in split.test.items()] == [(0, [0]), (2, [1, 4])]
    assert {client: sorted(indices) for client, indices in split.train.items()} == {0: [2, 5], 1: [3]}
    # Eva trains, Ali would be tested and so trains, too, Tom validates, and nobody would be tested on his sample
    of_nobody = FixedSplit((1,), (2,), (0, -1))
    split = ready(OfWriters(test_indices=[0], tests_clients=False, split=of_nobody)).federated_split
    sets = (split.train, split.val, split.test)
    held = [(client, sorted(indices)) for part in sets for client, indices in part.items()]
    assert held == [(0, [1, 4]), (1, [2, 5]), (2, [3]), (-1, [0])]
    # a split draws no test samples where there are some
    assert ready(OfWriters(IIDPartitioner(2), test_indices=[0], split=SampleSplit(0.0, 0.4))).client_sizes.sum() == 5
