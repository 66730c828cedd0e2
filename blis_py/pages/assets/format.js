// Numbers, times and elements.

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return GROUPED.format(value);
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return size >= 0.1 ? value.toFixed(2) : value.toPrecision(2);
}

export function tick(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${trimmed(value / 1e6)}M`;
  if (size >= 1e4) return `${trimmed(value / 1e3)}k`;
  return trimmed(value);
}

const trimmed = (value) => String(Number(value.toPrecision(4)));

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
