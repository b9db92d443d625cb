// The filter above a table of names.
const filter = document.getElementById("names-filter");
filter?.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/);
  for (const row of document.querySelectorAll("article tbody tr"))
    row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
});
