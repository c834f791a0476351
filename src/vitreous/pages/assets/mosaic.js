// Tiles side by side on one canvas, drawn again whenever its size changes, so that they are sharp at any size.

import { make } from "./dom.js";

export class Mosaic {
  // `ratio`: a tile's height by its width; `gap`: a share of a tile's width; without a label it is for the eye alone
  constructor({ columns, rows, ratio = 1, gap = 0.08, label = null }) {
    Object.assign(this, { columns, rows, ratio, gap, paint: null });
    this.canvas = make("canvas", label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" });
    const wide = columns + (columns - 1) * gap, high = rows * ratio + (rows - 1) * gap;
    this.canvas.style.aspectRatio = `${wide} / ${high}`;
    this.shape = high / wide;
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  resize() {
    const width = Math.round(this.canvas.clientWidth * devicePixelRatio);
    if (!width || width === this.canvas.width) return;
    this.canvas.width = width;
    this.canvas.height = Math.round(width * this.shape);
    if (this.paint) this.draw(this.paint);
  }

  // where a tile lies, in whole pixels of the canvas
  position(i) {
    const step = this.canvas.width / (this.columns + (this.columns - 1) * this.gap);
    const [row, column] = [Math.floor(i / this.columns), i % this.columns];
    const x = Math.round(column * step * (1 + this.gap)), y = Math.round(row * step * (this.ratio + this.gap));
    return { x, y, width: Math.max(1, Math.round(step)), height: Math.max(1, Math.round(step * this.ratio)) };
  }

  // `paint(context, i, box)` draws one tile
  draw(paint) {
    this.paint = paint;
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    for (let i = 0; i < this.columns * this.rows; i++) paint(context, i, this.position(i));
  }
}

// One tile of one pixel a number, enlarged without smoothing
const small = new OffscreenCanvas(1, 1);
export function enlarge(context, image, { x, y, width, height }) {
  small.width = image.width;
  small.height = image.height;
  small.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, x, y, width, height);
}

// Bytes [h w 1] or [h w 3] of tile `i` as an ImageData
export function imageOf({ data, shape }, i) {
  const [, height, width, colours] = shape;
  const image = new ImageData(width, height);
  for (let p = 0; p < width * height; p++) {
    for (let c = 0; c < 3; c++) image.data[4 * p + c] = data[(i * width * height + p) * colours + (colours === 3 ? c : 0)];
    image.data[4 * p + 3] = 255;
  }
  return image;
}

// How many columns suit `count` tiles: rather wide than high, and the last row full where that can be
export function columnsFor(count) {
  const least = Math.ceil(Math.sqrt(count));
  let best = least;
  const cost = (n) => 100 * ((n - (count % n)) % n > 1 ? 1 : 0) + Math.abs(n - Math.sqrt((count * 7) / 4));
  for (let n = least; n < 2 * least; n++) if (cost(n) < cost(best)) best = n;
  return Math.max(1, best);
}
