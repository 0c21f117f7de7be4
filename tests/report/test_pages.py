"""The template of all report pages."""

from __future__ import annotations

from html.parser import HTMLParser

from fl_lightning.report.pages import Grid, Page, Picture, Section

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


CALL = "Partitioner(num_clients=100, alpha=0.5)"


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
