"""The template of all report pages."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fl_lightning import partition_report
from fl_lightning.data import FederatedDataModule, SampleSplit, Source
from fl_lightning.partitioners import Partition
from fl_lightning.report.pages import Grid, Page, Picture, Section
from fl_lightning.report.pages.style import STYLE

PICTURE = Picture("p", "A < B.", b"\x89PNG")


class Outline(HTMLParser):
    """The texts of some elements, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts.setdefault(tag, []).append("")
        if tag not in ("meta", "link", "img", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data


def test_a_page_has_the_summary_the_warnings_and_the_sections_with_content() -> None:
    sections = [
        Section("One & two", "Text.", pictures=[PICTURE]),
        Section("Empty"),
        Section("Long", details={"t": "<x>"}),
    ]
    page = Outline(Page("<Title>", sections, "Summary.", ["Beware."]).to_html())
    assert page.open == []
    assert page.texts["h1"] == ["<Title>"]
    assert page.texts["h2"] == ["One & two", "Long"]
    assert page.texts["p"] == ["Summary.", "Beware.", "Text."]
    assert page.texts["pre"] == ["<x>"]
    assert "nav" not in page.texts


def test_a_page_of_three_sections_lists_them() -> None:
    sections = [Section(title, pictures=[PICTURE]) for title in ("A b", "C", "D")]
    text = Page("t", sections).to_html()
    assert Outline(text).texts["a"] == ["A b", "C", "D"]
    assert 'href="#a-b"' in text
    assert '<h2 id="a-b">' in text
    assert "banner" not in text.partition("</style>")[2]


CALL = "Partitioner(num_clients=100, alpha=0.5)"


def test_a_table_of_facts_has_no_header() -> None:
    grid = Grid("facts", "", (), [["name", CALL], ["n_1", "2"]], text_columns=(0, 1), note="Why.")
    html = grid.to_html()
    assert "<thead>" not in html
    assert "<figcaption>" not in html
    assert 'aria-label="facts"' in html
    assert Outline(html).texts["td"] == [CALL, "2"]
    assert "Partitioner(<wbr>num_clients=<wbr>100" in html
    assert grid.to_csv() == f'name,"{CALL}"\nn_1,2\n'
    latex = grid.to_latex()
    assert r"\begin{tabular}{ll}" in latex
    assert r"\midrule" not in latex
    assert r"\caption{Why.}" in latex


def test_a_row_with_the_name_of_the_one_above_continues_it() -> None:
    rows = [["a", "1"], ["a", "2"], ["b", "3"]]
    html = Grid("g", "c", ["x", "y"], rows).to_html()
    assert re.findall(r"<t[hd].*?</tr>", html)[1:] == [
        '<th scope="rowgroup" rowspan="2">a</th><td>1</td></tr>',
        "<td>2</td></tr>",
        '<th scope="row">b</th><td>3</td></tr>',
    ]


def test_very_long_names_are_shortened_on_the_page_and_whole_elsewhere() -> None:
    name = "a" * 200 + "z"
    grid = Grid("g", "c", ["data", name], [[name, "1"], ["text", "2"]])
    html = grid.to_html()
    short = "a" * 53 + "…" + "a" * 25 + "z"
    assert Outline(html).texts["th"] == ["data", short, short, "text"]
    assert html.count(f'title="{name}"') == 2
    assert name in grid.to_csv()
    assert name in grid.to_latex()
    facts = Grid("g", "", (), [["name", name]], text_columns=(0, 1))
    assert Outline(facts.to_html()).texts["td"] == [name]


def test_short_tables_are_printed_on_one_page() -> None:
    assert 'class="table short"' in Grid("g", "c", ["x"], [["1"]] * 8).to_html()
    assert 'class="table"' in Grid("g", "c", ["x"], [["1"]] * 9).to_html()
    assert 'class="table short many"' in Grid("g", "c", ["x"] * 13, [["1"] * 13]).to_html()


def test_wide_pictures_scroll_on_their_own() -> None:
    assert "scroll" not in PICTURE.to_html()
    wide = Picture("p", "c", b"", wide=True).to_html()
    assert '<figure class="wide"><div class="scroll"' in wide


@pytest.mark.parametrize("rule", ["prefers-color-scheme: dark", "max-width: 50rem", "@media print"])
def test_the_style_is_for_dark_mode_phones_and_print(rule: str) -> None:
    assert rule in STYLE


class Two(FederatedDataModule):
    def load(self) -> Source:
        labels = np.array([0, 1, 0, 1])
        return Source(TensorDataset(torch.zeros(4, 1), torch.from_numpy(labels)), labels)


def test_partitions_and_experiments_share_the_template(tmp_path: Path) -> None:
    data = Two(lambda labels: Partition((np.arange(2), np.arange(2, 4))), split=SampleSplit(val=0, test=0))
    data.prepare_data()
    data.setup()
    report = partition_report(data)
    page = Outline(report.html)
    assert page.texts["h2"] == ["Numbers", "Clients"]
    assert page.texts["figcaption"][0].startswith("Top: samples of each class on each client.")
    assert (
        report.html.split("<body>")[0].split("<style>")[1]
        == Page("t", []).to_html().split("<body>")[0].split("<style>")[1]
    )


def test_many_columns_become_rows() -> None:
    methods = [f"m{number}" for number in range(7)]
    numbers = [str(number) for number in range(7)]
    wide = Grid("g", "c", ["data", "metric", *methods], [["a", "loss", *numbers]], {(0, 3)}, text_columns=(0, 1))
    turned = wide.turned_if_wide("method", 2)
    assert turned.header == ["method", "a, loss"]
    assert turned.rows == [list(row) for row in zip(methods, numbers, strict=True)]
    assert turned.strong == {(1, 1)}
    assert (turned.text_columns, turned.name_columns) == ((0,), (0,))
    six = Grid("g", "c", ["data", "metric", *methods[:6]], [["a", "loss", *numbers[:6]]])
    assert six.turned_if_wide("method", 2) is six
