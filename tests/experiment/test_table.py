from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.small_table import small, with_data, with_methods
from helpers.written import assert_as_in

from fl_lightning.experiment import read_table
from fl_lightning.experiment.plan import Cell, levels, planned, table_cells
from fl_lightning.experiment.search import Tried
from fl_lightning.experiment.table_file import read_yaml

#: makes these values ones that have an effect
USED = {"values": {"used": ["$mu", "$m", "$gamma"]}}


def cells(content: dict[str, Any]) -> list[Cell]:
    table = read_table(content)
    return table_cells(table, planned(table))


def test_a_file_and_its_includes(tmp_path: Path) -> None:
    (tmp_path / "grids").mkdir()
    (tmp_path / "grids" / "paper.yaml").write_text("mu: [0.01, 1.0]\n")
    (tmp_path / "more.yaml").write_text("m: [2]\n")
    content = {**with_methods(FedAvg={"tune": {"mu": "$grid.mu", "m": "$more.m"}}, RADFed={"tune": None}), **USED}
    content["include"] = {"grid": "grids/paper.yaml", "more": "more.yaml"}
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(content))
    table = read_table(tmp_path / "table.yaml")
    assert planned(table)[0].points == [{"mu": 0.01, "m": 2}, {"mu": 1.0, "m": 2}]
    assert (table.baseline, table.folds, table.seeds) == ("FedAvg", [0], [0])


def test_a_table_on_top_of_another(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({**small(), "values": {"batch": None}}, sort_keys=False))
    prox = {"class_path": "fl_lightning.FedProx", "init_args": {"mu": 1}}
    changes = {
        "base": "base.yaml",
        "trainer": {"max_epochs": 9, "accelerator": None},
        "methods": {"RADFed": None, "FedProx": {"callback": prox}, "FedAvg": {"callback": prox}},
        "data": {"digits": {"model": {"init_args": {"lr": 3}}}},
    }
    (tmp_path / "top.yaml").write_text(yaml.safe_dump(changes, sort_keys=False))
    table = read_table(tmp_path / "top.yaml")
    assert table.trainer == {"max_epochs": 9}
    assert list(table.methods) == ["FedAvg", "FedProx"]
    # another class does not get the arguments of the one in the base
    assert table.methods["FedAvg"].callback == prox
    assert table.data["digits"].model["init_args"] == {"in_features": 3072, "num_classes": 10, "lr": 3}
    assert table.values == {"batch": None}
    # Of two that reproduce something the upper one is the reference.
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({**small(), "reproduces": "A"}))
    for reproduces, rounds in (({}, 4), ({"reproduces": "B"}, 9)):
        (tmp_path / "top.yaml").write_text(yaml.safe_dump({**changes, **reproduces}))
        assert read_table(tmp_path / "top.yaml").reference["trainer"]["max_epochs"] == rounds


def test_a_base_may_be_a_table_of_the_package_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"base": "personal_fashion", "seeds": [7]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(changes))
    whole = read_table("personal_fashion")
    assert "PFedMe" in whole.methods
    for table in (read_table(tmp_path / "mine.yaml"), read_table(changes)):
        assert list(table.methods) == list(whole.methods)
        assert table.seeds == [7]
    # A file of this name comes first, and a folder is no table.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "personal_fashion").mkdir()
    assert list(read_table("mine.yaml").methods) == list(whole.methods)
    (tmp_path / "personal_fashion").rmdir()
    (tmp_path / "personal_fashion").write_text(yaml.safe_dump(small()))
    assert list(read_table("mine.yaml").methods) == ["FedAvg", "RADFed"]


def test_baselines_of_personal_models_stand_before_the_others() -> None:
    mine = {"callback": {"class_path": "fl_lightning.FedAvg", "init_args": {"clients_per_round": 2}}}
    table = read_table(small(baselines={"clients_per_round": 1.0}, methods={"FedAvg": mine, "RADFed": mine}))
    assert list(table.methods) == ["Local", "FedAvg", "FedAvgFineTuned", "RADFed"]
    tuned = {"class_path": "fl_lightning.FedAvgFineTuned", "init_args": {"clients_per_round": 1.0}}
    assert table.methods["FedAvgFineTuned"].callback == tuned
    assert table.methods["FedAvg"].callback == mine["callback"]


def test_cells_share_all_but_the_method() -> None:
    found = cells(small(folds=[0, 1], seeds=[3, 4]))
    assert [(c.fold, c.seed, c.method) for c in found[:3]] == [(0, 3, "FedAvg"), (0, 3, "RADFed"), (0, 4, "FedAvg")]
    assert len({cell.id for cell in found}) == 8
    first, second = found[:2]
    assert {name for name in first.config if first.config[name] != second.config[name]} == {"callback"}
    assert first.config["datamodule"]["init_args"]["split"]["init_args"]["fold"] == 0
    assert first.config["seed"] == 3
    assert first.config["model"]["init_args"]["lr"] == 0.01


def test_an_identity_knows_no_names_and_all_settings() -> None:
    def cell(**changes: Any) -> str:
        return cells(small(**changes))[0].id

    renamed = small(name="other")
    renamed["methods"] = {"mean": renamed["methods"]["FedAvg"]}
    assert cells(renamed)[0].id == cell()
    assert cell(seeds=[1]) != cell()
    assert cell(trainer={"max_epochs": 5, "accelerator": "cpu"}) != cell()
    assert cell(select="last") != cell()


def test_values_of_the_method_stand_above_those_of_the_data_set_and_the_table() -> None:
    table = with_methods(FedAvg={"values": {"lr": 0.5}})
    table["values"] = {"lr": 9.0}
    assert [cell.config["model"]["init_args"]["lr"] for cell in cells(table)] == [0.5, 0.01]
    fedavg, _ = planned(read_table(table))
    fedavg.tried = [Tried({"lr": 0.7}, (), 1, 0.9, "", 0)]
    assert fedavg.final[0].config["model"]["init_args"]["lr"] == 0.7


def test_methods_take_over_what_was_chosen_for_others() -> None:
    table = read_table(
        with_methods(FedAvg={"take": {"lr": "RADFed"}, "tune": {"m": [2, 3]}}, RADFed={"tune": {"lr": [0.1, 0.2]}})
        | USED
    )
    groups = levels(table)
    [radfed] = next(groups)
    radfed.tried = [Tried(point, (), 1, score, "", 0) for point, score in zip(radfed.points, (0.1, 0.9), strict=True)]
    [fedavg] = next(groups)
    assert (radfed.method, fedavg.method) == ("RADFed", "FedAvg")
    assert fedavg.points == [{"lr": 0.2, "m": 2}, {"lr": 0.2, "m": 3}]
    assert [(entry.method, len(entry.points)) for entry in planned(table)] == [("RADFed", 2), ("FedAvg", 2)]


def test_tuning_has_folds_seeds_and_rounds_of_its_own() -> None:
    table = small(tuning={"folds": [1], "seeds": [5, 6], "max_epochs": 2})
    table["methods"]["FedAvg"]["tune"] = {"lr": [0.1, 0.2]}
    search = planned(read_table({**table, "folds": [2, 3], "seeds": [7, 8]}))[0]
    assert [(c.fold, c.seed, c.max_epochs) for c in search.final] == [(f, s, 4) for f in (2, 3) for s in (7, 8)]
    splits = [cell.config["datamodule"]["init_args"]["split"]["init_args"]["fold"] for cell in search.final]
    assert (splits, [cell.config["seed"] for cell in search.final]) == ([2, 2, 3, 3], [7, 8, 7, 8])
    trials = search.trials
    places = [(1, seed, 2, {"lr": lr}) for lr in (0.1, 0.2) for seed in (5, 6)]
    assert [(c.fold, c.seed, c.max_epochs, c.values) for c in trials] == places


def test_a_fit_that_may_be_pruned_is_compared_with_earlier_ones_of_its_fold_and_seed() -> None:
    tuning = {"folds": [1], "seeds": [5, 6], "pruner": "asha", "at_once": 2}
    table = small(tuning=tuning, keep_models=True)
    table["methods"]["FedAvg"]["tune"] = {"lr": [0.1, 0.2, 0.3]}
    search = planned(read_table(table))[0]
    search.tried = [Tried({"lr": 1}, fits, 2, 0.5, "", 0) for fits in (("a", "b"), ("c", "d"))]
    orders = [cell.config["pruning"] for cell in search.cells(search.points[2], 2)]
    assert orders == [{"pruner": "asha", "number": 2, "earlier": earlier} for earlier in (["a", "c"], ["b", "d"])]
    kept = ["keep_model" in cell.config for cell in (*search.cells({"lr": 1}, 2), *search.final)]
    assert kept == [False, False, True]


def test_what_a_search_says_of_its_points(tmp_path: Path) -> None:
    table = with_methods(FedAvg={"tune": {"lr": [0.1, 0.2, 0.3, 0.4]}})
    scores = [(0.5, "", 0), (0.75, "pruned after 3 rounds", 3), (None, "E: x", 0), (0.5, "", 0)]
    lines: list[str] = []
    for on_test, found in ((False, scores), (True, scores[:1]), (False, [(None, "E: x", 0), (None, "E: y", 0)])):
        data = {"digits": {**table["data"]["digits"], "validate_on_test": on_test}}
        search = planned(read_table({**table, "data": data, "select": "last"}))[0]
        search.tried = [Tried(p, (), 2, *each) for p, each in zip(search.points, found, strict=False)]
        lines += [search.describe(), *map(str, search.rows())]
    assert_as_in(Path(__file__).with_name("searches.txt"), lines, tmp_path)


def test_a_part_of_a_table() -> None:
    content = with_methods(Third={"callback": small()["methods"]["FedAvg"]["callback"]})
    content["data"] = {name: content["data"]["digits"] for name in "abc"}
    table = read_table({**content, "seeds": [0, 1]}).only(methods=["Third", "RADFed"], data=["c", "b"], seeds=[1])
    assert (list(table.methods), list(table.data)) == (["RADFed", "Third"], ["b", "c"])
    assert (table.seeds, table.baseline) == ([1], "RADFed")
    # One that takes values needs the methods from which it does.
    table = read_table(with_methods(FedAvg={"take": {"lr": "RADFed"}}, RADFed={"values": {"lr": 0.1}}))
    assert list(table.only(methods=["RADFed"]).methods) == ["RADFed"]


def test_other_folds_need_data_that_depend_on_them() -> None:
    table = small()
    assert read_table(table).only(folds=[2]).folds == [2]
    table["data"]["digits"]["datamodule"]["init_args"].pop("split")
    assert read_table(table).only(folds=[0]).folds == [0]


def test_a_reference_to_a_mapping_a_trainer_a_data_set_or_a_callback_may_use_a_value() -> None:
    callbacks = [{"class_path": "faulty.TakesAnything", "init_args": {"value": "$lt"}}]
    for used in ({"callbacks": callbacks}, {"trainer": {"max_epochs": "$lt"}}, {"values": {"x": ["$lt"]}}):
        read_table(with_methods(FedAvg={"values": {"lt": 1}}) | used)
    read_table(with_methods(FedAvg={"tune": "$grid"}) | {"values": {"grid": {"lr": [1]}}})


def test_whether_larger_scores_are_better_follows_from_the_names() -> None:
    for score, monitor, mode, expected in (
        ("test_acc_clients", "val_acc_clients", "max", "max"),
        ("test_own", "val_own", "min", "min"),
        ("test_acc", "val_loss", "min", "max"),
        ("test_loss", "val_acc_clients", "max", "min"),
        ("test_f1_clients", "val_auroc_clients", "max", "max"),
        ("test_acc_clients_std", "val_acc_clients", "max", "min"),
    ):
        table = read_table(with_data(score=score, monitor=monitor, mode=mode))
        assert table.data["digits"].score_mode == expected, score


def test_an_ordinary_file(tmp_path: Path) -> None:
    text = 'a: &x {b: 1e-3, c: "1e5"}\nd: {<<: *x, b: 2}\ne: [*x, *x]\nf: $lr\ng: 1e5x\n'
    (tmp_path / "t.yaml").write_text(text)
    x = {"b": 0.001, "c": "1e5"}
    whole = {"a": x, "d": {"b": 2, "c": "1e5"}, "e": [x, x], "f": "$lr", "g": "1e5x"}
    assert read_yaml(tmp_path / "t.yaml") == whole


def test_a_table_shows_what_is_in_it() -> None:
    # The largest seed is that of a generator.
    table = read_table(small(seeds=[3, 2**32 - 1]))
    assert repr(table) == "Table('small': 2 methods, 1 data sets, 1 folds, 2 seeds)"
    assert "FedAvg, RADFed" in table._repr_html_()
    assert "3, 4294967295" in table._repr_html_()
