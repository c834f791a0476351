// Small charts as SVG: dots by block, lines, a grid of numbers, bars. They take numbers and give an element.

import { make, number, percent } from "./dom.js";
import { gradient, paint } from "./colours.js";

const LARGE = [560, 260], PHONE = [350, 230], SMALL = [200, 150]; // so that words are as large everywhere
const NARROW = 56, TOP = 12, BOTTOM = 34;

function frame({ label, low, high, steps, names, title, unit = "", small = false, right: RIGHT = 22 }) {
  const [WIDE, TALL] = small ? SMALL : matchMedia("(max-width: 40rem)").matches ? PHONE : LARGE;
  const marks = ticks(low, high).map(([value, text]) => [value, text + unit]);
  const LEFT = Math.max(NARROW, 14 + 6.8 * Math.max(0, ...marks.map(([, text]) => text.length)));
  const x = (i) => LEFT + ((WIDE - LEFT - RIGHT) * (steps > 1 ? i / (steps - 1) : 0.5));
  const y = (value) => TOP + (TALL - TOP - BOTTOM) * (1 - (value - low) / (high - low || 1));
  const svg = make("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, class: "chart", role: "img", "aria-label": title });
  for (const [value, text] of marks) {
    svg.append(make("line", { x1: LEFT, x2: WIDE - RIGHT, y1: y(value), y2: y(value), class: "grid" }));
    svg.append(make("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, text));
  }
  for (const i of named(steps, WIDE / 40, Boolean(names))) svg.append(make("text", { x: x(i), y: TALL - BOTTOM + 18, "text-anchor": "middle" }, names ? names[i] : String(i)));
  svg.append(make("text", { x: (LEFT + WIDE - RIGHT) / 2, y: TALL - 2, "text-anchor": "middle", class: "axis" }, label));
  return { svg, x, y, left: LEFT, right: WIDE - RIGHT, bottom: TALL - BOTTOM };
}

// Which of many steps are named: all, or every second, third, …; where they are shares of a whole, its quarters
function named(steps, limit, quarters) {
  if (steps > limit && quarters) return [0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * (steps - 1)));
  const every = Math.ceil(steps / limit);
  return [...Array(Math.ceil(steps / every)).keys()].map((i) => i * every);
}

// Round numbers from low to high, about `count` of them, with their text: as many digits as the steps need
export function ticks(low, high, count = 4) {
  const span = high - low || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((each) => each >= 0.999 * rough);
  const tiny = Math.max(Math.abs(low), Math.abs(high)) < 0.01;
  let digits = 0;
  while (digits < 6 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits++;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * span; i++) {
    const value = i * step;
    const places = Math.max(0, Math.floor(Math.log10(Math.abs(value))) - Math.round(Math.log10(power)) + 1); // of a power of ten
    found.push([value, i === 0 ? "0" : tiny ? value.toExponential(places).replace(/\.?0+e/, "e") : value.toFixed(digits)]);
  }
  return found;
}

// values [layers × heads]: a dot for each head, a line through their means; the chosen one marked
export function dots(values, layers, heads, { title, label = "block", unit = "", floor = 0, ceiling = null, limits = null, chosen = null, choose = null, small = false }) {
  const [low, high] = limits ?? [floor, Math.max(...values, ceiling ?? 0) * 1.05];
  const { svg, x, y, left, right } = frame({ label, low, high, steps: layers, title, unit, small });
  if (ceiling !== null) svg.append(make("line", { x1: left, x2: right, y1: y(ceiling), y2: y(ceiling), class: "limit" }));
  const means = [];
  for (let layer = 0; layer < layers; layer++) {
    let sum = 0;
    for (let head = 0; head < heads; head++) {
      const value = values[layer * heads + head];
      sum += value;
      const here = chosen && chosen.layer === layer && chosen.head === head;
      const dot = make("circle", { cx: x(layer), cy: y(value), r: here ? 6 : 4, class: `dot${here ? " here" : ""}${choose ? " link" : ""}`, onclick: choose ? () => choose(layer, head) : null });
      dot.append(make("title", {}, `block ${layer}, head ${head}: ${number(value)}${unit}`));
      svg.append(dot);
    }
    means.push(`${x(layer)},${y(sum / heads)}`);
  }
  svg.insertBefore(make("polyline", { points: means.join(" "), class: "mean" }), svg.querySelector("circle"));
  return svg;
}

// lines: [{ name, values, quiet, strong, dashed, colour }]; each is named at the right, in the order of their ends or of step `at`
export function lines(series, { title, label, names = null, low = 0, high = 1, at = null }) {
  const steps = series[0].values.length;
  const longest = Math.max(...series.map(({ name }) => name.length));
  const { svg, x, y, right, bottom } = frame({ label, low, high, steps, names, title, right: 18 + 6.4 * Math.min(longest, 22) });
  const ends = [];
  for (const { name, values, quiet, strong, dashed, colour } of series) {
    const points = [...values].map((value, i) => `${x(i)},${y(value)}`).join(" ");
    const classes = `line${quiet ? " quiet" : ""}${strong ? " strong" : ""}${dashed ? " dashed" : ""}${colour === undefined ? "" : ` line-${colour} own`}`;
    const line = make("polyline", { points, class: classes });
    line.append(make("title", {}, name));
    svg.append(line);
    ends.push({ name, classes, from: y(values[at ?? values.length - 1]), end: y(values[values.length - 1]) });
  }
  let above = -Infinity;
  ends.sort((a, b) => a.from - b.from);
  for (const end of ends) above = end.to = Math.max(end.from, above + 13);
  let below = bottom + 13; // names that would leave the chart at the bottom move up
  for (const end of ends.reverse()) below = end.to = Math.min(end.to, below - 13);
  for (const { name, classes, from, end, to } of ends) {
    const start = at === null ? right + 1 : x(at);
    svg.append(make("line", { x1: start, x2: right + 7, y1: at === null ? end : from, y2: to, class: at === null ? "grid" : "lead" }));
    svg.append(make("text", { x: right + 9, y: to + 4, class: `end ${classes.replace("line ", "")}` }, name.length > 22 ? `${name.slice(0, 21)}…` : name));
  }
  return svg;
}

// values [layers × heads] as a table of buttons: colour and number; `choose(layer, head)` on click
export function cells(values, layers, heads, { title, kind = "heat", choose, chosen, off = null, describe }) {
  const peak = Math.max(...[...values].map(Math.abs)) || 1;
  const image = paint(values, heads, { kind, peak }).data;
  const rows = [];
  rows.push(make("tr", {}, make("td", {}), ...[...Array(heads).keys()].map((head) => make("th", { scope: "col" }, String(head)))));
  for (let layer = 0; layer < layers; layer++) {
    const row = make("tr", {}, make("th", { scope: "row" }, String(layer)));
    for (let head = 0; head < heads; head++) {
      const i = layer * heads + head;
      const [r, g, b] = [0, 1, 2].map((c) => image[4 * i + c]);
      const here = chosen && chosen.layer === layer && chosen.head === head;
      const gone = off?.has(`${layer}.${head}`);
      row.append(
        make("td", {}, make("button", {
          class: `cell${here ? " here" : ""}${gone ? " gone" : ""}`,
          style: { background: `rgb(${r} ${g} ${b})` },
          title: describe(layer, head, values[i]),
          "aria-label": describe(layer, head, values[i]) + (gone ? ", switched off" : ""),
          "aria-pressed": off ? String(Boolean(gone)) : null,
          onclick: () => choose(layer, head),
        })),
      );
    }
    rows.push(row);
  }
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, make("table", { class: "cells", "aria-label": title }, ...rows));
}

// A square matrix as a canvas; `down` and `across` say what its sides count, `ends` where they begin and end
export function matrix(values, count, { title, kind = "heat", peak = null, low = 0, down, across, ends = [0, count - 1] }) {
  const canvas = make("canvas", { width: count, height: values.length / count, class: "matrix", role: "img", "aria-label": title });
  canvas.getContext("2d").putImageData(paint(values, count, { kind, peak, low }), 0, 0);
  const side = (name, label) => make("div", { class: `side ${name}`, "aria-hidden": "true" }, [ends[0], label, ends[1]].map((text) => make("span", {}, String(text))));
  return make("div", { class: "framed" }, side("down", down), canvas, side("across", across));
}

// rows: [{ name, value, note, onclick }]; `share`: values are shares of 1; otherwise bars go left below zero and right above
export function ranking(rows, { title, unit = "", share = false, peak = null }) {
  const far = share ? 1 : peak ?? (Math.max(...rows.map((row) => Math.abs(row.value))) || 1);
  const both = !share && rows.some((row) => row.value < 0);
  const bar = (value) => {
    const width = (100 * Math.abs(value)) / far / (both ? 2 : 1);
    return make("span", { class: value < 0 ? "bar minus" : "bar", style: { width: `${width}%`, "margin-left": both ? `${value < 0 ? 50 - width : 50}%` : "0" } });
  };
  const text = (value) => (share ? percent(value) : `${value > 0 && unit === "±" ? "+" : ""}${number(value)}`);
  return make(
    "ol", { class: "ranking", "aria-label": title },
    rows.map(({ name, value, note, onclick }) =>
      make("li", {},
        onclick ? make("button", { class: "link", onclick }, name) : make("span", {}, name),
        make("span", { class: "track" }, bar(value)),
        make("span", { class: "value" }, `${text(value)}${note ? ` ${note}` : ""}`)),
    ),
  );
}

// What colours mean: a ramp between its two ends
export function scale(kind, low, high) {
  return make("div", { class: "scale" }, make("span", {}, low), make("span", { class: "ramp", style: { background: gradient(kind) }, "aria-hidden": "true" }), make("span", {}, high));
}
