// The image with a heat map over its patches. Hovering, touching or the arrow keys choose a patch.

import { paint } from "./colours.js";
import { make } from "./dom.js";

export class Stage {
  // `covered` are the shares of the image's height and width that patches read, from its top left;
  // `choose(token)` is called when another token is hovered, or null; `pin(token)` when a click holds it
  constructor({ rows, columns, prefix, covered }, image, { choose, pin, label, describedBy }) {
    Object.assign(this, { rows, columns, prefix, covered, image, choose, pin });
    this.ratio = image ? image.height / image.width : rows / columns;
    this.small = new OffscreenCanvas(this.columns, this.rows);
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.element = make(
      "div",
      { class: "stage", tabindex: "0", role: "application", "aria-roledescription": "image of patches", "aria-label": label, "aria-describedby": describedBy },
      this.canvas,
    );
    this.element.style.setProperty("--ratio", this.ratio); // height by width
    this.element.addEventListener("pointermove", (event) => this.hover(event));
    this.element.addEventListener("pointerdown", (event) => this.click(event));
    this.element.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resize()).observe(this.element);
    this.shown = null;
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / (box.width * this.covered[1])) * this.columns);
    const row = Math.floor(((event.clientY - box.top) / (box.height * this.covered[0])) * this.rows);
    if (row < 0 || column < 0 || row >= this.rows || column >= this.columns) return null;
    return this.prefix + row * this.columns + column;
  }

  hover(event) {
    this.choose(this.at(event));
  }

  click(event) {
    this.element.focus({ preventScroll: true });
    const token = this.at(event);
    if (token !== null) this.pin(token);
  }

  key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const current = this.current ?? 0; // the last one chosen, drawn or not: keys may come quicker than frames
    if (event.key in moves) {
      const patch = current < this.prefix ? Math.floor(this.rows / 2) * this.columns + Math.floor(this.columns / 2) : current - this.prefix;
      const [down, right] = current < this.prefix ? [0, 0] : moves[event.key];
      const row = Math.min(this.rows - 1, Math.max(0, Math.floor(patch / this.columns) + down));
      const column = Math.min(this.columns - 1, Math.max(0, (patch % this.columns) + right));
      const token = this.prefix + row * this.columns + column;
      if (token !== this.current) this.pin((this.current = token));
    } else if (event.key === "Home" || event.key === "Escape" || event.key === "c") {
      this.pin((this.current = null));
    } else return;
    event.preventDefault();
  }

  resize() {
    const width = Math.max(1, Math.round(this.element.clientWidth * devicePixelRatio));
    this.canvas.width = width;
    this.canvas.height = Math.max(1, Math.round(width * this.ratio));
    if (this.shown) this.draw(this.shown);
  }

  // { values [patches] or null, colours [patches × 3] or null, kind, peak, low, opacity, query, outliers, without, contour, removed, layer, mark }
  draw(shown) {
    this.shown = shown;
    this.current = shown.query;
    render(this.canvas, this.image, this.small, this, shown);
  }
}

// Draw image, heat map and the chosen patch onto a canvas of any size: the stage, or an image to be saved.
export function render(canvas, image, small, { rows, columns, prefix, covered }, shown) {
  const { query = null, outliers = null, removed = null } = shown;
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  overlay(context, { x: 0, y: 0, width, height }, shown.kind === "signed" ? null : image, small, { ...shown, columns, covered, ...(shown.kind === "signed" ? { opacity: 1 } : {}) });
  if (shown.layer) { // a colour for each pixel
    context.globalAlpha = 0.7 * shown.opacity;
    context.imageSmoothingEnabled = false;
    context.drawImage(shown.layer, 0, 0, width, height);
    context.globalAlpha = 1;
  }
  const [high, wide] = [height * covered[0], width * covered[1]];
  const edges = (patch) => {
    const [left, top] = [Math.round(((patch % columns) * wide) / columns), Math.round((Math.floor(patch / columns) * high) / rows)];
    return [left, top, Math.round((((patch % columns) + 1) * wide) / columns) - left, Math.round(((Math.floor(patch / columns) + 1) * high) / rows) - top];
  };
  if (removed) {
    context.fillStyle = `rgb(${removed.colour.join(" ")})`;
    for (let patch = 0; patch < rows * columns; patch++) if (removed.gone.has(patch)) context.fillRect(...edges(patch));
  }
  const line = Math.max(2, width / 240);
  if (shown.contour?.size) border(context, shown.contour, edges, columns, rows, line);
  const outline = ([x, y, wide, high], dashes) => {
    for (const [colour, extra] of [["rgb(0 0 0 / .65)", line], ["#fff", 0]]) {
      context.strokeStyle = colour;
      context.lineWidth = (dashes.length ? line / 2 : line) + extra;
      context.setLineDash(dashes);
      context.strokeRect(x + line, y + line, wide - 2 * line, high - 2 * line);
    }
    context.setLineDash([]);
  };
  if (shown.mark) { // the pixel that is asked about
    for (const [colour, wide] of [["#000", 2.5 * line], ["#fff", line]]) {
      context.strokeStyle = colour;
      context.lineWidth = wide;
      context.beginPath();
      context.arc(shown.mark[1] * width, shown.mark[0] * height, 4 * line, 0, 2 * Math.PI);
      context.stroke();
    }
  }
  for (const patch of outliers ?? []) outline(edges(patch), [2 * line, 2 * line]);
  if (query !== null && query >= prefix) outline(edges(query - prefix), []);
}

// A line around patches that belong together, light on dark, so that it is seen on any image
function border(context, patches, edges, columns, rows, line) {
  const sides = new Path2D();
  for (const patch of patches) {
    const [x, y, wide, high] = edges(patch), [row, column] = [Math.floor(patch / columns), patch % columns];
    const has = (down, right) => row + down >= 0 && row + down < rows && column + right >= 0 && column + right < columns && patches.has(patch + down * columns + right);
    for (const [down, right, x1, y1, x2, y2] of [[-1, 0, x, y, x + wide, y], [1, 0, x, y + high, x + wide, y + high], [0, -1, x, y, x, y + high], [0, 1, x + wide, y, x + wide, y + high]]) {
      if (has(down, right)) continue;
      sides.moveTo(x1, y1);
      sides.lineTo(x2, y2);
    }
  }
  context.lineCap = "square";
  for (const [colour, wide] of [["rgb(0 0 0 / .6)", 1.6 * line], ["#fff", 0.7 * line]]) {
    context.strokeStyle = colour;
    context.lineWidth = wide;
    context.stroke(sides);
  }
}

// An image in a box of a canvas, and over it, as far as it is covered by patches, heat [patches] or colours [patches × 3];
// `small` has a pixel for each patch.
export function overlay(context, { x, y, width, height }, image, small, { values = null, colours = null, columns, covered = [1, 1], kind = "tint", peak = null, low = 0, opacity = 0.6, without = null }) {
  context.globalAlpha = 1;
  if (image) {
    context.imageSmoothingEnabled = image.width >= width / 4;
    context.drawImage(image, x, y, width, height);
  } else context.clearRect(x, y, width, height);
  if (!values && !colours) return;
  const heat = image && kind === "tints" ? values.map((value) => Math.max(0, value)) : values; // what is below zero is hatched
  small.getContext("2d").putImageData(colours ? solid(colours, columns, opacity) : paint(heat, columns, { kind, peak, low, alpha: opacity, without }), 0, 0);
  context.imageSmoothingEnabled = false;
  const box = { x, y, width: width * covered[1], height: height * covered[0] };
  context.drawImage(small, x, y, box.width, box.height);
  if (heat !== values) hatch(context, box, values, { columns, peak, opacity, without });
}

// Diagonal lines over the patches below zero, the clearer the further below
function hatch(context, { x, y, width, height }, values, { columns, peak, opacity, without }) {
  const rows = values.length / columns, pitch = Math.max(4, Math.round(width / columns / 4));
  const lines = new OffscreenCanvas(pitch, pitch), pen = lines.getContext("2d");
  for (const [colour, wide] of [["#000", 0.5 * pitch], ["#fff", 0.2 * pitch]]) {
    pen.strokeStyle = colour;
    pen.lineWidth = wide;
    for (const shift of [-pitch, 0, pitch]) {
      pen.beginPath();
      pen.moveTo(shift - pitch, 2 * pitch);
      pen.lineTo(shift + 2 * pitch, -pitch);
      pen.stroke();
    }
  }
  context.fillStyle = context.createPattern(lines, "repeat");
  values.forEach((value, i) => {
    if (value >= 0 || without?.has(i)) return;
    context.globalAlpha = opacity * Math.min(1, -value / (peak || 1)) ** 0.7; // lines cover little: weak ones must be seen
    const [left, top] = [(i % columns) * width / columns, Math.floor(i / columns) * height / rows].map(Math.round);
    context.fillRect(x + left, y + top, Math.round(((i % columns) + 1) * width / columns) - left, Math.round((Math.floor(i / columns) + 1) * height / rows) - top);
  });
  context.globalAlpha = 1;
}

function solid(colours, columns, opacity) {
  const image = new ImageData(columns, colours.length / 3 / columns);
  for (let i = 0; i < colours.length / 3; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = colours[3 * i + c];
    image.data[4 * i + 3] = 255 * Math.max(0.35, opacity);
  }
  return image;
}

// A small map without the image: one pixel a patch, enlarged by the browser
export function thumbnail(columns, rows) {
  return make("canvas", { width: columns, height: rows, class: "small", "aria-hidden": "true" });
}

export function fill(canvas, values, options) {
  canvas.getContext("2d").putImageData(paint(values, canvas.width, options), 0, 0);
}
