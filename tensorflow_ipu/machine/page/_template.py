"""What pages of the machine's report have of their own: their looks, and the script that sorts tables."""

LOOKS = """\
:root {
  --grid: #dfe3e9;
  --compute: #2f6fdb; --exchange: #e39a2d; --sync: #9aa4b2; --links: #1f9e8f; --host: #b453c6;
  --always: #35618f; --data: #57b0a3; --stash: #e39a2d; --code: #9aa4b2; --limit: #d2373f;
  --forward: #7fb0f5; --backward: #efb766; --recompute: #b7d4a8; --update: #d79ae2; --move: #9aa4b2;
  --good: #1b7f4b; --unsure: #9a6400; --bad: #c22932;
}
@media (prefers-color-scheme: dark) {
  :root {
    --grid: #323b48;
    --compute: #6ea2ff; --exchange: #f0b04f; --sync: #6d7889; --links: #45c2b2; --host: #cd7fdc;
    --always: #5b8fc6; --data: #4fa598; --stash: #e0a040; --code: #6d7889; --limit: #ff6b70;
    --forward: #3b72c4; --backward: #b07a28; --recompute: #5c8a4a; --update: #8f4fa0; --move: #6d7889;
    --good: #5fd19a; --unsure: #f0b04f; --bad: #ff7b80;
  }
}
main { grid-template-columns: 1fr 1fr; }
header, .wide { grid-column: 1 / -1; }
@media (max-width: 820px) { main { grid-template-columns: 1fr; padding: 12px 10px 32px; gap: 10px; } }
.fits { color: var(--good); } .may-fit { color: var(--unsure); } .does-not-fit { color: var(--bad); }
.card:not(.wide) svg { max-width: 520px; }
figure { margin: 0; }
.scrolls svg { min-width: 640px; }
.key .maybe { background: repeating-linear-gradient(135deg, var(--code) 0 2px, transparent 2px 5px) !important;
  outline: 1px solid var(--code); outline-offset: -1px; }
ul.key + table, .scrolls + .scrolls { margin-top: 12px; }
.bar { display: flex; height: 26px; border-radius: 5px; overflow: hidden; }
td.name { overflow-wrap: anywhere; min-width: min(150px, 26vw); }
.sortable td.name { min-width: 150px; }
.scrolls + p.soft { margin-top: 12px; }
td:not(.name) { white-space: nowrap; }
td.kind { white-space: normal; }
td.wraps { white-space: normal; overflow-wrap: anywhere; min-width: 90px; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid var(--compute); }
th[aria-sort=descending] button::after { content: " \\25BE"; } th[aria-sort=ascending] button::after { content: " \\25B4"; }
.sortable thead th { position: sticky; top: 0; background: var(--card); }
ul.told { margin: 8px 0 0; padding-left: 1.2em; }
"""

SCRIPT = """\
<script>
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const value = (row, at) => row.cells[at].dataset.value ?? row.cells[at].textContent;
  heads.forEach((head, at) => head.querySelector("button").addEventListener("click", () => {
    const numbers = head.classList.contains("n");
    const down = head.ariaSort ? head.ariaSort === "ascending" : numbers;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.ariaSort = down ? "descending" : "ascending";
    const compare = numbers
      ? (a, b) => value(a, at) - value(b, at)
      : (a, b) => value(a, at).localeCompare(value(b, at));
    body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * compare(a, b)));
  }));
}
</script>
"""
