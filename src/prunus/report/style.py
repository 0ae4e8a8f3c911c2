"""Style (CSS) and behaviour (JavaScript) of the pages; nothing is loaded from elsewhere."""

from __future__ import annotations

# Colour-blind readers can distinguish the blue, orange, green and grey. The page is light or dark as the reader's
# system asks, and always light in print.
CSS = """
:root { --paper: #ffffff; --ink: #1b1b1b; --soft: #5c5c5c; --rule: #d9d9d9; --card: #f5f6f7; --link: #0072B2;
  --blue: #0072B2; --orange: #E69F00; --green: #009E73; --grey: #999999; --pale: #d4d4d4; color-scheme: light; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #15171a; --ink: #ececec; --soft: #a9adb3; --rule: #363a40; --card: #1f2226; --link: #6cb8e6;
    --blue: #2b93d1; --pale: #43474d; color-scheme: dark; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 54rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .4rem 0 .8rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .4rem; padding-top: .6rem; border-top: 1px solid var(--rule); }
p { margin: .4rem 0 .8rem; max-width: 46rem; }
.soft { color: var(--soft); font-size: .9rem; }
.verdict { font-size: 1.2rem; font-weight: 600; line-height: 1.4; margin: .2rem 0 1rem; }
.lead p { font-size: 1.05rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(11.5rem, 1fr)); gap: .7rem; margin: 1.2rem 0; }
.card { background: var(--card); border-radius: .5rem; padding: .7rem .9rem; break-inside: avoid; }
.card .what { color: var(--soft); font-size: .85rem; }
.card .now { font-size: 1.5rem; font-weight: 650; line-height: 1.3; }
.card .was { font-size: .85rem; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .25rem 1rem; margin: .6rem 0; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; }
figure { margin: .8rem 0; break-inside: avoid; }
figcaption { font-size: .85rem; color: var(--soft); overflow-wrap: anywhere; }
figcaption b { color: var(--ink); }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; list-style: none; margin: .4rem 0; padding: 0;
  font-size: .85rem; }
.key li::before { content: ""; display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px;
  background: var(--mark); vertical-align: -.05em; }
.key .blue { --mark: var(--blue); } .key .orange { --mark: var(--orange); } .key .green { --mark: var(--green); }
.key .grey { --mark: var(--grey); } .key .pale { --mark: var(--pale); }
.key .ink { --mark: var(--ink); } .key .hollow { --mark: var(--paper); }
.key .hollow::before { box-shadow: inset 0 0 0 2px var(--blue); }
.key .round::before { border-radius: 50%; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(13.5rem, 1fr)); gap: .4rem 1.4rem; }
.units { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: .4rem 1.6rem; }
.maps div { display: grid; grid-template-columns: 5.6rem 1fr; gap: .6rem; align-items: center; margin: .65rem 0; }
.maps span { font-size: .82rem; } .maps .gone span { color: var(--soft); }
.maps img { width: 100%; max-width: 19rem; image-rendering: pixelated; }
.maps .gone img { outline: 2px dashed var(--orange); outline-offset: 2px; }
.plot { overflow-x: auto; background: #ffffff; border-radius: .5rem; padding: .4rem; }
.plot > * { display: block; margin: 0 auto; max-width: 100%; height: auto; }
details { margin: .5rem 0; } summary { cursor: pointer; font-weight: 600; }
svg.chart { display: block; overflow: visible; font-size: 12px; }
:where(.chart) text { fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 5px;
  stroke-linejoin: round; }
svg .small { font-size: 11px; fill: var(--soft); }
svg .strong { font-weight: 650; fill: var(--ink); } svg .name { font-size: 11.5px; } svg .narrow { display: none; }
svg .kept { fill: var(--blue); } svg .cut { fill: var(--orange); } svg .other { fill: var(--grey); }
svg .lost { fill: var(--pale); } svg .test { fill: var(--green); stroke: var(--paper); }
svg .ink { fill: var(--ink); } svg .behind { fill: var(--paper); stroke: var(--blue); stroke-width: 2; }
svg .grid { stroke: var(--rule); } svg .axis { stroke: var(--soft); }
svg .curve { stroke: var(--blue); stroke-width: 2.5; }
svg .regain { stroke: var(--orange); stroke-width: 1.5; stroke-dasharray: 3 4; }
svg .goal { stroke: var(--ink); stroke-width: 1.2; stroke-dasharray: 6 4; }
svg .second { stroke: var(--orange); stroke-width: 2; } svg .spread { stroke: var(--ink); stroke-width: 2; }
svg .rail { stroke: var(--grey); stroke-width: 1.5; } svg .stream { stroke: var(--orange); stroke-width: 3; }
svg .joint { fill: var(--paper); stroke: var(--ink); stroke-width: 1.5; } svg .end { fill: var(--ink); }
svg .box { fill: var(--blue); stroke: var(--paper); stroke-width: 2; }
.network figure, .network details { margin: 0; } .network summary { list-style: none; font-weight: 400; }
.network summary::-webkit-details-marker { display: none; } .network details[open] { background: var(--card); }
svg rect:hover, svg circle:hover { opacity: .75; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; line-height: 1.25; }
th:first-child, td:first-child, .words { text-align: left; }
table.plain td { text-align: left; white-space: normal; }
th button { text-align: inherit; font: inherit; font-weight: 650; color: inherit;
  background: none; border: 0; padding: 0; cursor: pointer; }
th button::after { content: " ↕"; color: var(--soft); }
th[aria-sort="ascending"] button::after { content: " ↑"; } th[aria-sort="descending"] button::after { content: " ↓"; }
td.bar { background: linear-gradient(to right, color-mix(in srgb, var(--blue) 35%, transparent) var(--part),
  transparent 0); background-clip: padding-box; border-left: .3rem solid transparent; }
table.heat { width: auto; } table.heat td { text-align: center; min-width: 1.9rem; height: 1.8rem; padding: .2rem;
  border: 1px solid var(--rule); background: color-mix(in srgb, var(--orange) var(--heat, 0%), transparent); }
table.heat th { text-align: right; font-weight: 400; border: 0; white-space: nowrap; padding: .2rem .4rem; }
table.heat thead th { text-align: center; vertical-align: bottom; } table.heat thead td { border: 0; }
table.heat thead span { writing-mode: vertical-rl; transform: rotate(180deg); }
table.heat .right { background: var(--card); } table.heat .more { outline: 2px solid var(--ink); outline-offset: -2px; }
.pairs { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: .4rem 1.6rem; }
pre { background: var(--card); border-radius: .5rem; padding: .8rem; overflow-x: auto; font-size: .86rem; }
pre.wraps { white-space: pre-wrap; overflow-wrap: anywhere; }
p code { white-space: nowrap; }
code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
.progress { background: var(--pale); border-radius: .4rem; overflow: hidden; margin: .4rem 0; }
.progress div { background: var(--blue); height: .8rem; }
.download { font: inherit; font-size: .9rem; color: var(--ink); background: var(--card); cursor: pointer;
  border: 1px solid var(--rule); border-radius: .4rem; padding: .3rem .7rem; margin: .15rem 0; }
a { color: var(--link); }
@media (max-width: 560px) {
  body { padding: .9rem; } h1 { font-size: 1.4rem; }
  .cards { grid-template-columns: 1fr 1fr; } .card .now { font-size: 1.2rem; }
  .plot > * { max-width: none; }
  .units { grid-template-columns: 1fr; }
  dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; }
  svg .wide { display: none; } svg .narrow { display: inline; } }
@media print {
  body { max-width: none; padding: 0; font-size: 11pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  h2, summary, .key { break-after: avoid; } dl, .key { break-inside: avoid; }
  th button::after { content: ""; } .download { display: none; } pre { white-space: pre-wrap; }
  .scroll { overflow: visible; }
  table { font-size: .75rem; } th, td { padding: .2rem .3rem; } }
"""

# A click on a heading sorts the table, largest first; another click reverses it. A button saves a file
# that the page contains. In print everything is unfolded.
JAVASCRIPT = """
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const first = column === 0 ? "ascending" : "descending";
    const other = column === 0 ? "descending" : "ascending";
    const way = head.getAttribute("aria-sort") === first ? other : first;
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", way);
    const value = (row) => Number(row.cells[column].dataset.value);
    const rows = [...table.tBodies[0].rows].sort((a, b) => value(a) - value(b) || a.dataset.place - b.dataset.place);
    if (way === "descending") rows.reverse();
    table.tBodies[0].append(...rows);
  }));
}
const kept = document.getElementById("downloads");
const files = kept === null ? {} : JSON.parse(kept.textContent);
for (const button of document.querySelectorAll("button.download")) {
  button.addEventListener("click", () => {
    const name = button.dataset.file, link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([files[name]], { type: "text/plain" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
"""
