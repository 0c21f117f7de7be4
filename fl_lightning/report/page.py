"""The report as one HTML page that holds all it needs."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.45 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 75rem; margin: 0 auto;
  padding: 1rem; }
h1 { font-size: 1.4rem; line-height: 1.25; margin: 0.3rem 0 1rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; max-width: 48rem; }
th, td { border-bottom: 1px solid #ddd; padding: 0.35rem 0.2rem; text-align: left; vertical-align: top; }
th { font-weight: 600; width: 36%; padding-right: 1rem; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
figure { margin: 1.2rem 0; overflow-x: auto; }
img { display: block; max-width: 100%; height: auto; }
figcaption { position: sticky; left: 0; }
figcaption, p { color: #555; font-size: 0.875rem; }
@media screen and (max-width: 50rem) { img.wide { max-width: none; width: 56rem; } }
@media print {
  @page { size: landscape; margin: 12mm; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  figure { break-before: page; margin: 0; overflow: visible; }
  img { width: auto; max-width: 100%; max-height: 160mm; }
}
"""

_EXPLANATION = (
    "Top: samples of each class on each client; middle: the client's class mix; bottom: how many clients there are of "
    "each size."
)
_EXPLANATION_WITHOUT_CLASSES = "Top: samples of each client; bottom: how many clients there are of each size."
_MEANINGS = (
    "C-score: mean over clients of the summed absolute differences between the client's class shares and those of all "
    "samples (0: the same mix everywhere). Feature skew: the same for the values of a categorical feature. Joint "
    "entropy: of client and class. The standard deviation is that of the population."
)


def render_page(title: str, rows: Mapping[str, str], png: bytes, *, wide: bool, classes: bool) -> str:
    """Return the page as HTML: a table of facts, what the numbers mean, and the figure.

    Args:
        title: Heading of the page.
        rows: The table.
        png: The figure.
        wide: Whether the figure would be too small on a phone; it is then shown larger, to be moved sideways.
        classes: Whether the figure shows classes.
    """
    table = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{_breakable(value)}</td></tr>' for name, value in rows.items()
    )
    explanation = _EXPLANATION if classes else _EXPLANATION_WITHOUT_CLASSES
    image = base64.b64encode(png).decode("ascii")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<table>
{table}
</table>
<p>{escape(_MEANINGS)}</p>
<figure>
<img{' class="wide"' if wide else ""} alt="{escape(explanation)}" src="data:image/png;base64,{image}">
<figcaption>{escape(explanation)}</figcaption>
</figure>
</body>
</html>
"""


def _breakable(text: str) -> str:
    """Return a text as HTML that may be broken after an opening bracket, for narrow screens."""
    return escape(text).replace("(", "(<wbr>")
