// Charts of named lines, from numbers inlined in the page: { title, xLabel, yLabel, unit, xFrom, series: [{ label, x, y,
// low, high }] }. A band is drawn if low and high are given; null is a gap.

import { ticks } from "./charts.js";
import { make } from "./dom.js";

const TALL = 250, NARROW = 52, RIGHT = 20, TOP = 22, BOTTOM = 40;
const COLOURS = 8;

// Draw every element of class "curves" under `root` and return the charts; `choose(x)` is called with the clicked x.
export function drawCurves(root, choose = null) {
  return [...root.querySelectorAll(".curves")].map((element) => {
    const chart = new Curves(JSON.parse(element.querySelector("script").textContent), choose);
    element.replaceChildren(chart.element);
    return chart;
  });
}

export class Curves {
  constructor(spec, choose = null) {
    Object.assign(this, spec, { choose, cursor: null, hovered: null });
    const xs = this.series.flatMap((each) => each.x);
    const ys = this.series.flatMap((each) => [each.y, each.low ?? [], each.high ?? []].flat()).filter((y) => y !== null);
    this.x0 = Math.min(this.xFrom ?? Infinity, ...xs, ...(xs.length ? [] : [0]));
    this.x1 = Math.max(this.xFrom ?? -Infinity, ...xs, ...(xs.length ? [] : [1]));
    [this.y0, this.y1] = limits(ys);
    this.levels = ticks(this.y0, this.y1, 5).map(([y, text]) => [y, text + this.unit]);
    this.left = Math.max(NARROW, 14 + 6.8 * Math.max(0, ...this.levels.map(([, text]) => text.length)));
    this.values = this.series.map(() => make("b", {}));
    this.legend = make("ul", { class: "legend" }, this.series.map(({ label }, i) => make("li", { class: `line-${i % COLOURS}` }, make("i", { "aria-hidden": "true" }), make("span", {}, label), this.values[i])));
    this.drawing = make("div", { class: "plot" });
    this.element = make("div", {}, this.legend, this.drawing);
    new ResizeObserver(() => this.draw()).observe(this.drawing);
  }

  px(x) {
    return this.left + ((this.width - this.left - RIGHT) * (x - this.x0)) / (this.x1 - this.x0 || 1);
  }

  py(y) {
    return TOP + ((TALL - TOP - BOTTOM) * (this.y1 - y)) / (this.y1 - this.y0);
  }

  // in words, for screen readers
  description() {
    const ends = this.series.map(({ label, y }) => {
      const known = y.filter((value) => value !== null);
      return known.length ? `${label} from ${this.spell(known[0])} to ${this.spell(known.at(-1))}` : `${label}: nothing yet`;
    });
    return `${this.title} (${this.yLabel}) by ${this.xLabel}: ${ends.join("; ")}`;
  }

  spell(y) {
    return `${Number(y.toPrecision(3)) || 0}${this.unit}`;
  }

  draw() {
    const width = this.drawing.clientWidth;
    if (!width || width === this.width) return;
    this.width = width;
    const svg = make("svg", { viewBox: `0 0 ${width} ${TALL}`, width, height: TALL, class: "chart", role: "img", "aria-label": this.description() });
    for (const [y, text] of this.levels) {
      svg.append(make("line", { x1: this.left, x2: width - RIGHT, y1: this.py(y), y2: this.py(y), class: "grid" }));
      svg.append(make("text", { x: this.left - 8, y: this.py(y) + 4, "text-anchor": "end" }, text));
    }
    for (const [x, text] of ticks(this.x0, this.x1, Math.min(8, width / 60, Math.max(1, this.x1 - this.x0)))) svg.append(make("text", { x: this.px(x), y: TALL - BOTTOM + 18, "text-anchor": "middle" }, text));
    svg.append(make("text", { x: (this.left + width - RIGHT) / 2, y: TALL - 4, "text-anchor": "middle", class: "axis" }, this.xLabel));
    const shown = [this.title.toLowerCase(), ...this.series.map((each) => each.label)]; // not twice
    if (!shown.includes(this.yLabel)) svg.append(make("text", { x: 0, y: 11 }, this.yLabel));
    this.rule = make("line", { y1: TOP, y2: TALL - BOTTOM, class: "rule" });
    svg.append(this.rule);
    this.series.forEach((each, i) => this.band(svg, each, i));
    this.series.forEach((each, i) => this.line(svg, each, i));
    this.marks = this.series.map((_, i) => make("circle", { r: 4.5, class: `mark line-${i % COLOURS}` }));
    svg.append(...this.marks);
    svg.addEventListener("pointermove", (event) => this.point(this.at(event)));
    svg.addEventListener("pointerleave", () => this.point(null));
    if (this.choose) {
      svg.classList.add("chooses");
      svg.addEventListener("click", (event) => this.choose(this.at(event)));
    }
    this.drawing.replaceChildren(svg);
    this.showValues();
  }

  band(svg, { x, low, high }, i) {
    if (!low) return;
    const known = [...x.keys()].filter((k) => low[k] !== null && high[k] !== null);
    const edge = [...known.map((k) => [x[k], high[k]]), ...known.reverse().map((k) => [x[k], low[k]])];
    svg.append(make("path", { d: `M${edge.map(([a, b]) => `${this.px(a)},${this.py(b)}`).join("L")}Z`, class: `band line-${i % COLOURS}` }));
  }

  line(svg, { x, y }, i) {
    let text = "";
    let pen = false; // whether the last point was drawn
    x.forEach((value, k) => {
      if (y[k] !== null) text += `${pen ? "L" : "M"}${this.px(value)},${this.py(y[k])}`;
      pen = y[k] !== null;
    });
    svg.append(make("path", { d: text || "M0,0", class: `curve line-${i % COLOURS}` }));
    if (x.length === 1 && y[0] !== null) svg.append(make("circle", { cx: this.px(x[0]), cy: this.py(y[0]), r: 3.5, class: `mark line-${i % COLOURS}` }));
  }

  at(event) {
    const box = this.drawing.getBoundingClientRect();
    const share = (event.clientX - box.left - this.left) / (this.width - this.left - RIGHT);
    return this.x0 + Math.min(1, Math.max(0, share)) * (this.x1 - this.x0);
  }

  // the x under the pointer, or null
  point(x) {
    this.hovered = x;
    this.showValues();
  }

  // the x of the chosen moment
  mark(x) {
    this.cursor = x;
    this.showValues();
  }

  showValues() {
    const wanted = this.hovered ?? this.cursor;
    if (this.rule) this.rule.setAttribute("visibility", wanted === null ? "hidden" : "visible");
    const at = wanted === null ? null : this.hovered === null ? wanted : this.nearest(wanted);
    if (this.rule && at !== null) for (const end of ["x1", "x2"]) this.rule.setAttribute(end, this.px(at));
    this.series.forEach(({ x, y }, i) => {
      const k = at === null ? -1 : x.indexOf(at);
      const known = k >= 0 && y[k] !== null;
      this.values[i].textContent = known ? this.spell(y[k]) : "";
      if (!this.marks) return;
      this.marks[i].setAttribute("visibility", known ? "visible" : "hidden");
      if (known) for (const [name, value] of [["cx", this.px(at)], ["cy", this.py(y[k])]]) this.marks[i].setAttribute(name, value);
    });
  }

  nearest(x) {
    const known = this.series.flatMap((each) => each.x);
    return known.reduce((best, each) => (Math.abs(each - x) < Math.abs(best - x) ? each : best), known[0] ?? x);
  }
}

// From 0 if that is not far below, with a margin above
function limits(ys) {
  if (!ys.length) return [0, 1];
  const low = Math.min(...ys), high = Math.max(...ys);
  const room = 0.05 * (high - low) || 0.05 * Math.abs(high) || 0.5;
  return [low >= 0 && low < 0.6 * high ? 0 : low - room, high + room];
}
