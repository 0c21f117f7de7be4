"""The style sheet of all report pages: screen, phone, dark mode and print."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --soft: #555; --line: #e0e0e0; --link: #0b57a4;
  --shade: #f5f5f5; --best: #e9eef7; --edge: rgba(0, 0, 0, 0.28); --warning: #fff7ed; --warning-edge: #b45309;
  --frame: 0; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181b; --ink: #e6e6e6; --soft: #a9adb3; --line: #34383d; --link: #8ab8ff; --shade: #212429;
    --best: #2b3a52; --edge: rgba(0, 0, 0, 0.75); --warning: #33270f; --warning-edge: #d08a2e;
    --frame: 0.75rem; }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  padding: 1rem; width: fit-content; min-width: min(50rem, 100%); max-width: min(78rem, 100%); }
/* as wide as the tables and the figures, which are in the middle of a wide screen then; these ask for no width */
h1, nav, .banner, details { width: 0; min-width: 100%; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.3rem 0 0.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0.6rem; padding-top: 0.6rem; border-top: 2px solid var(--line); }
p, figcaption { max-width: 46rem; margin: 0.4rem 0; }
.note { color: var(--soft); font-size: 0.875rem; }
a { color: var(--link); }
nav { font-size: 0.9rem; margin: 0.6rem 0 1rem; }
nav a { display: inline-block; margin-right: 1rem; padding: 0.3rem 0; }
.banner { border-left: 5px solid var(--warning-edge); background: var(--warning); padding: 0.6rem 0.9rem;
  margin: 0.8rem 0; }
.banner p { margin: 0.2rem 0; max-width: none; }
figure { margin: 1rem 0 1.6rem; }
figure.table figcaption { font-weight: 600; font-size: 0.95rem; }
/* the shadow at the edge shows that there is more to scroll to; the first layer covers it at the end */
.scroll { overflow-x: auto; background: linear-gradient(to left, var(--paper) 60%, transparent) right / 3rem 100%
  no-repeat local, radial-gradient(farthest-side at 100% 50%, var(--edge), transparent) right / 0.9rem 100% no-repeat
  scroll; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { border-bottom: 1px solid var(--line); padding: 0.32rem 0.5rem; text-align: right; vertical-align: top;
  white-space: nowrap; font-variant-numeric: tabular-nums; }
thead th { border-bottom: 2px solid var(--soft); vertical-align: bottom; }
th { font-weight: 600; }
th:first-child { padding-left: 0.1rem; }
th:first-child, .text { text-align: left; }
th:first-child { position: sticky; left: 0; background: var(--paper); }
th[scope=rowgroup] { max-width: 16rem; white-space: normal; }
td.long { white-space: normal; min-width: 14rem; overflow-wrap: anywhere; }
th.long { white-space: normal; min-width: 8rem; max-width: 16rem; overflow-wrap: anywhere; }
td strong, th strong { background: var(--best); padding: 0 0.15rem; border-radius: 2px; }
table.facts { width: 100%; max-width: 46rem; }
table.facts th { width: 34%; white-space: normal; }
table.facts td { white-space: normal; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: 0.5rem 1.5rem; }
.figures:has(> figure + figure) { width: 76rem; max-width: 100%; }
.figures figure { margin: 0.4rem 0; min-width: 0; }
.figures figcaption { color: var(--soft); font-size: 0.875rem; }
.figures figure:only-child { grid-column: 1 / -1; max-width: 48rem; }
.figures figure.wide { grid-column: 1 / -1; max-width: none; }
img { display: block; width: 100%; height: auto; background: #fff; border-radius: 8px; padding: var(--frame); }
details { margin: 0.5rem 0; }
summary { cursor: pointer; padding: 0.3rem 0; }
pre { font-size: 0.8rem; white-space: pre-wrap; overflow-wrap: anywhere; background: var(--shade); padding: 0.6rem; }
@media screen and (max-width: 50rem) {
  thead th { white-space: normal; }
  td.text:not(.long) { white-space: normal; min-width: 6.6rem; }
  figure.wide img { width: 46rem; max-width: none; }
  figure.wide figcaption::after { content: " Scroll the figure sideways to see all of it."; }
}
@media print {
  @page { size: A4 landscape; margin: 12mm; }
  :root { color-scheme: light; --paper: #fff; --ink: #000; --soft: #444; --line: #ccc; --shade: #fff; --best: #eee;
    --warning: #fff; --frame: 0; }
  body { width: auto; min-width: 0; max-width: none; padding: 0; font-size: 9.5pt; }
  nav { display: none; }
  h1, h2, h2 + p, figcaption, thead { break-after: avoid; }
  p { orphans: 3; widows: 3; }
  .note, .figures figcaption, h2 + p { font-size: 8pt; }
  /* no row stands alone on a page: short tables are whole, of long ones the first and the last rows stay together */
  .figures figure, figure.short, .banner, .note, tr { break-inside: avoid; }
  thead { display: table-header-group; }
  tbody tr:nth-child(-n + 3) { break-after: avoid; }
  tbody tr:nth-last-child(-n + 3), figure.table > .note { break-before: avoid; }
  details:not([open]) { display: none; }
  .scroll { overflow: visible; background: none; }
  table { font-size: 7.5pt; }
  .many table { font-size: 6pt; }
  th, td { padding-right: 0.35rem; }
  th, td.text { white-space: normal; }
  th:first-child { position: static; }
  /* lines of figures: a heading stays with the first line, which it would not with a grid */
  .figures { display: block; }
  .figures figure { display: inline-block; width: 32%; margin: 0.3rem 0.6% 0.3rem 0; vertical-align: top; }
  .figures figure.wide, .figures figure:only-child { display: block; width: auto; }
  figure.wide img, figure:only-child img { width: auto; max-width: 100%; max-height: 150mm; }
}
"""
