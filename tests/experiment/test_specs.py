from __future__ import annotations

import collections

import pytest

from fl_lightning import RADFed
from fl_lightning.experiment.specs import build, check_paths, identity, locate, references, substitute
from fl_lightning.metrics import weighted_f1


def test_references_become_values_of_any_type() -> None:
    values = {"lr": 0.1, "S": 15, "grid": {"mu": [0.1, 1]}, "rate": "$lr", "kind": {"class": "a.B"}}
    spec = {"a": "$lr", "b": ["$S", "$grid.mu", "$rate"], "c": "$$lr", "d": "$kind.class", "e": "costs $5", "f": None}
    assert substitute(spec, values) == {
        "a": 0.1,
        "b": [15, [0.1, 1], 0.1],
        "c": "$lr",
        "d": "a.B",
        "e": "costs $5",
        "f": None,
    }
    assert references(spec) == {"lr", "S", "grid", "rate", "kind"}


@pytest.mark.parametrize(
    ("spec", "values", "message"),
    [
        ("$mu", {"lr": 1}, r"There is no value for \$mu; known are \$lr\. Put it into `values`"),
        ("$grid.S", {"grid": {}}, r"There is no value for \$grid\.S"),
        ("$a", {"a": "$b", "b": "$a"}, "a, b refer to each other in a circle"),
    ],
)
def test_wrong_references(spec: str, values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        substitute(spec, values)


def test_classes_are_built_at_any_depth() -> None:
    method = build(
        {
            "class_path": "fl_lightning.RADFed",
            "init_args": {
                "redistributions": 3,
                "server": {"class_path": "fl_lightning.parts.Mixing", "init_args": {"lr": 0.5}},
            },
        }
    )
    assert isinstance(method, RADFed)
    assert method.redistributions == 3
    assert build([{"object": "fl_lightning.metrics.weighted_f1"}, {"n": 1}]) == [weighted_f1, {"n": 1}]
    assert build({"class_path": "collections.OrderedDict"}) == collections.OrderedDict()
    assert locate("datamodules.CovertypeDataModule.named").__name__ == "named"


@pytest.mark.parametrize(
    "path", ["fl_lightning.FedNothing", "nowhere.at.all", "FedAvgg", "fl_lightning.FedAvg.nothing"]
)
def test_paths_that_name_nothing(path: str) -> None:
    with pytest.raises(ValueError, match=f"'{path}' cannot be imported"):
        locate(path)
    with pytest.raises(ValueError, match="cannot be imported"):
        check_paths([{"class_path": "fl_lightning.FedAvg", "init_args": {"x": {"class_path": path}}}])
    check_paths({"class_path": "$method"})


def test_identity_depends_on_content_and_not_on_order() -> None:
    # the first 16 digits of the SHA-256 of {"a":1,"b":[true,null]}
    assert identity({"b": [True, None], "a": 1}) == "1cc69c7fa23616ca"
    assert identity({"a": 1, "b": [True, None]}) == identity({"b": [True, None], "a": 1})
    assert identity({"a": 1}) != identity({"a": 2})
