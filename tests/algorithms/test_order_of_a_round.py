"""The order of a round of FedAvg that its module's docstring tells."""

import re
import sys
from pathlib import Path
from types import FrameType

from helpers.toys import Quadratic, quadratic_clients, quiet_trainer

import fl_lightning
from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.algorithms import fedavg


def test_a_round_calls_what_the_docstring_of_fedavg_tells_in_its_order() -> None:
    told = dict(re.findall(r"^    ([\w.]+) +(\S+\.py)", fedavg.__doc__ or "", re.MULTILINE))
    called: dict[str, str] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_qualname in told:
            called.setdefault(code.co_qualname, code.co_filename)

    data = TensorDataModule(quadratic_clients(a=[1.0, 4.0, 2.0], c=[0.0, 1.0, 3.0]))
    sys.setprofile(note)
    try:
        trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(2, executor="sequential")])
        trainer.fit(Quadratic(0.1), datamodule=data)
    finally:
        sys.setprofile(None)

    assert len(told) > 10
    assert list(called) == list(told)
    package = Path(fl_lightning.__file__).parent
    assert [Path(file).relative_to(package).as_posix() for file in called.values()] == list(told.values())
