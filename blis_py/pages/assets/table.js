// Tables that sort by a column: a click or Enter on its heading.

export function sortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((cell, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      const order = cell.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
      headings.forEach((each) => each.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", order);
      sort(table.tBodies[0], column, order === "ascending" ? 1 : -1);
    });
  });
}

function sort(body, column, sign) {
  const key = (row) => {
    const cell = row.cells[column];
    const value = cell.dataset.value ?? "";
    return value === "" || Number.isNaN(Number(value)) ? cell.textContent.trim() : Number(value);
  };
  const rows = [...body.rows].map((row) => [key(row), row]);
  const kind = (value) => (typeof value === "number" ? 0 : 1);
  rows.sort(([a], [b]) => kind(a) - kind(b) || sign * (a > b ? 1 : a < b ? -1 : 0));
  body.append(...rows.map(([, row]) => row));
}
