// The field of a panel filters the rows of its table. Rows of a sortable table are grouped: a click on the first row of a
// group folds the others, and a click on a heading sorts the rows within groups, and the groups.
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
      const found = members(group).map(matches);
      fold(group, true);
      group.hidden = !found.includes(true);
      if (!filter.value || group.hidden) continue;
      group.querySelector("button").ariaExpanded = "true";
      members(group).forEach((row, at) => { row.hidden = !found[at]; });
    }
  });
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, at) => row.cells[at].dataset.value ?? row.cells[at].textContent;
  heads.forEach((head, at) => head.querySelector("button").addEventListener("click", () => {
    const numbers = head.classList.contains("n");
    const down = head.ariaSort ? head.ariaSort === "ascending" : numbers;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.ariaSort = down ? "descending" : "ascending";
    const compare = numbers
      ? (a, b) => value(a, at) - value(b, at)
      : (a, b) => value(a, at).localeCompare(value(b, at));
    const sort = (a, b) => (down ? -1 : 1) * compare(a, b);
    for (const group of groups) group.append(...members(group).sort(sort));
    table.append(...groups.sort((a, b) => sort(a.rows[0], b.rows[0])));
  }));
}
