"""What objects show in a notebook and at a prompt."""

from __future__ import annotations

import html
import re
import struct
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fl_lightning import partition_report
from fl_lightning.datamodules import DigitsDataModule
from fl_lightning.experiment import read_table
from fl_lightning.experiment.store import ResultRows
from fl_lightning.notebook import Drawn, as_table
from fl_lightning.partitioners import IIDPartitioner
from fl_lightning.report import ReportPage

TABLES = Path(__file__).parents[1] / "fl_lightning" / "recipes" / "tables"


def test_a_table_escapes_its_cells() -> None:
    text = as_table([("a<b", 0.123456), ("x", 3)], ["name", "value"])
    head = '<tr style="text-align: right;"> <th>name</th> <th>value</th> </tr>'
    cells = "<tr> <td>a&lt;b</td> <td>0.1235</td> </tr> <tr> <td>x</td> <td>3</td> </tr>"
    assert " ".join(text.split()) == (
        f'<table class="dataframe"> <thead> {head} </thead> <tbody> {cells} </tbody> </table>'
    )
    assert "thead" not in as_table([(1,)])


def test_a_long_table_says_how_long_it_is() -> None:
    text = as_table([(number,) for number in range(21)])
    assert re.findall("<td>([0-9]+)</td>", text) == [str(number) for number in (*range(10), *range(11, 21))]
    assert "<p>21 rows" in text
    assert "rows" not in as_table([(number,) for number in range(20)])


def test_a_picture_is_cut_to_what_is_drawn(tmp_path: Path) -> None:
    drawn = Drawn()
    drawn.figure = Figure(figsize=(4, 2), dpi=50)
    drawn.figure.add_artist(Rectangle((0.25, 0.25), 0.5, 0.5, linewidth=0))
    # 2 and 1 inches, and a tenth on each side, of 100 pixels
    assert struct.unpack(">II", drawn._repr_png_()[16:24]) == (220, 120)
    drawn.figure.text(0.5, 0.5, "a")
    drawn.savefig(tmp_path / "a.pdf")
    assert b"/Type3" not in (tmp_path / "a.pdf").read_bytes()  # which publishers do not take


def test_a_partition_is_shown_in_short() -> None:
    data = DigitsDataModule(IIDPartitioner(10))
    data.setup()
    report = partition_report(data)
    assert repr(report) == str(report.summary) and len(repr(report)) < 1500
    assert report._repr_html_().startswith('<iframe srcdoc="')
    assert html.escape(report.html) in report._repr_html_()
    # all 1,797 digits, 179 or 180 for each of ten clients
    assert "<td>1,797</td>" in data.statistics()._repr_html_()
    assert len(repr(data.plot())) < 100


def test_results_are_shown_as_a_table() -> None:
    finished = {"data": "d", "method": "FedAvg", "status": "finished", "score": 0.5, "folder": "x", "test_acc": 0.5}
    rows = ResultRows([{"data": "d", "method": "Local", "status": "failed"}, finished])
    assert rows == [dict(rows[0]), finished]
    assert repr(rows) == "ResultRows(2 rows, 1 finished; each row is a dict)"
    shown = "/".join(re.findall("<t[dh]>(.*?)</t[dh]>", rows._repr_html_()))
    assert shown == "data/method/fold/seed/status/score/test_acc/d/Local///failed///d/FedAvg///finished/0.5/0.5"


def test_a_table_of_methods_is_shown_in_short() -> None:
    table = read_table(TABLES / "radfed_paper.yaml")
    assert repr(table).startswith("Table('radfed_paper': 12 methods, 9 data sets, ")
    assert "<td>methods</td>" in table._repr_html_() and "<td>FedAvg, " in table._repr_html_()


def test_the_path_of_a_report_shows_the_page(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<h1>results</h1>")
    page = ReportPage(tmp_path / "report.html")
    assert page == tmp_path / "report.html"
    style = "width: 100%; height: 700px; border: 1px solid #8884"
    assert page._repr_html_() == f'<iframe srcdoc="&lt;h1&gt;results&lt;/h1&gt;" style="{style}"></iframe>'
