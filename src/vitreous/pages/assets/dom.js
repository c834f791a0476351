// Elements in one line: make("button", { class: "play", onclick: play }, "Play").

export function make(tag, properties = {}, ...children) {
  const element = tag === "svg" || SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style" && typeof value === "object") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = new Set(["path", "line", "circle", "rect", "text", "g", "title", "polyline"]);

export function percent(value) {
  const digits = value >= 0.0995 || value === 0 ? 0 : value >= 0.00995 ? 1 : 2;
  return `${(100 * value).toFixed(digits)} %`;
}

// a number that a model gives, with four digits or all before the point
export function quantity(value) {
  const size = Math.abs(value);
  return (size >= 1000 && size < 1e12 ? value.toFixed(0) : String(Number(value.toPrecision(4)))).replaceAll("-", "−");
}

// what a model says of one of its outputs: a number, or a probability or share
export const amount = (each) => ("value" in each ? quantity(each.value) : percent(each.probability));

export function number(value) {
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(0) : size >= 1 ? value.toFixed(1) : size === 0 ? "0" : size >= 0.01 ? value.toFixed(2) : value.toExponential(0);
}

// the colour of a class
export function swatch(colour) {
  return make("i", { class: "swatch", "aria-hidden": "true", style: { background: colour } });
}
