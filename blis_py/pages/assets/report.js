// A report: charts from the data in the file, sortable tables, copy buttons, colours.

import { bars } from "./bars.js";
import { draw } from "./chart.js";
import { copied } from "./copy.js";
import { sortable } from "./table.js";
import { themed } from "./theme.js";

const { charts } = JSON.parse(document.getElementById("data").textContent);

function drawn() {
  for (const host of document.querySelectorAll("figure[data-chart]")) {
    const spec = charts[host.dataset.chart];
    if (spec.kind === "bars") bars(host, spec);
    else draw(host, spec);
  }
}

drawn();
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) requestAnimationFrame(drawn);
  width = innerWidth;
});
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => (each.open = true)));
for (const table of document.querySelectorAll("table.sortable")) sortable(table);
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", () => copied(button, button.closest(".code").querySelector("pre").textContent));
}
themed(document.getElementById("theme"));
