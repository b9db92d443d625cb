// The search field of a panel filters the rows of its table. Rows of a sortable table are in groups. A click on the first
// row of a group folds or unfolds its other rows. A click on a heading sorts the rows within the groups, and the groups.
for (const filter of document.querySelectorAll("input[type=search]")) {
  const table = filter.closest(".card").querySelector("table"), groups = [...table.tBodies];
  const sortable = table.classList.contains("sortable");
  const matches = row => row.textContent.toLowerCase().includes(filter.value.toLowerCase());
  if (!sortable) {
    filter.addEventListener("input", () => { for (const row of groups[0].rows) row.hidden = !matches(row); });
    continue;
  }
  const members = group => [...group.rows].slice(1);
  const fold = (group, folded) => {
    group.querySelector("button").ariaExpanded = String(!folded);
    for (const row of members(group)) row.hidden = folded;
  };
  for (const group of groups) {
    const button = group.querySelector("button");
    button.addEventListener("click", () => fold(group, button.ariaExpanded === "true"));
    fold(group, true);
  }
  filter.addEventListener("input", () => {
    for (const group of groups) {
      const matching = members(group).map(matches);
      fold(group, true);
      group.hidden = !matching.includes(true);
      if (!filter.value || group.hidden) continue;
      group.querySelector("button").ariaExpanded = "true";
      members(group).forEach((row, index) => { row.hidden = !matching[index]; });
    }
  });
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const isNumeric = head.classList.contains("n");
    const down = head.ariaSort ? head.ariaSort === "ascending" : isNumeric;
    for (const cell of heads) cell.removeAttribute("aria-sort");
    head.ariaSort = down ? "descending" : "ascending";
    const compare = isNumeric
      ? (a, b) => value(a, column) - value(b, column)
      : (a, b) => value(a, column).localeCompare(value(b, column));
    const sort = (a, b) => (down ? -1 : 1) * compare(a, b);
    for (const group of groups) group.append(...members(group).sort(sort));
    table.append(...groups.sort((a, b) => sort(a.rows[0], b.rows[0])));
  }));
}
