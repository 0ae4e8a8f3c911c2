// A click on a heading sorts the table, largest first; another click reverses it. A button saves a file that the page
// contains. In print everything is unfolded.
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
