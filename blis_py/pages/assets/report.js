// A report: charts from the data in the file, sortable tables, copy buttons, colours.

import { bars } from "./bars.js";
import { draw } from "./chart.js";
import { copied } from "./copy.js";
import { sortable } from "./table.js";
import { themed } from "./theme.js";

const { charts } = JSON.parse(document.getElementById("data").textContent);

const PAPER = 700; // CSS pixels between the margins of A4

function drawn(paper = false) {
  for (const host of document.querySelectorAll("figure[data-chart]")) {
    const spec = charts[host.dataset.chart];
    if (spec.kind === "bars") bars(host, spec);
    else draw(host, spec, paper ? { width: host.parentElement.children.length > 1 ? PAPER / 2 - 8 : PAPER, height: 200 } : {});
  }
}

// On paper charts have its width, and what is folded is open.
function printed(paper) {
  drawn(paper);
  for (const each of document.querySelectorAll("details")) {
    if (paper) each.dataset.open = each.open;
    each.open = paper || each.dataset.open === "true";
  }
}

drawn();
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) requestAnimationFrame(() => drawn());
  width = innerWidth;
});
addEventListener("beforeprint", () => printed(true));
addEventListener("afterprint", () => printed(false));
for (const table of document.querySelectorAll("table.sortable")) sortable(table);
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", () => copied(button, button.closest(".code").querySelector("pre").textContent));
}
themed(document.getElementById("theme"));
