// Numbers to colours. Over an image one accent colour covers more where there is more (`tint`), so that the image stays as it
// is where there is nothing; below zero `tints` has hatching, which no photograph has. Without an image: magma, or red and blue
// (`heat`, `signed`).

const MAGMA = "000004 0a0822 1d1147 36106b 51127c 6a1c81 832681 9c2e7f b73779 d0416f e75263 f56b5c fc8961 fea772 fec488 fde2a3 fcfdbf".split(" ");
const SIGNED = "053061 175290 2a71b2 3f8ec0 6bacd1 9bc9e0 c2ddec e0ecf3 f7f6f6 fbe5d8 fbccb4 f5aa89 e48066 d05548 ba2832 930e26 67001f".split(" ");

function table(stops) {
  const colours = stops.map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const found = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const position = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(position), stops.length - 2);
    for (let c = 0; c < 3; c++) found[3 * i + c] = colours[low][c] + (position - low) * (colours[low + 1][c] - colours[low][c]);
  }
  return found;
}

const TABLES = { heat: table(MAGMA), signed: table(SIGNED) };
const MORE = [255, 20, 120], LESS = [0, 105, 255];

// How much of the image a share of the scale covers: little values let it through; the ramp beside it is drawn alike
const cover = (share) => share ** 1.6;

const STRIPES = "repeating-linear-gradient(135deg, #17191d 0 1.5px, #fff 1.5px 4px)";

// Values [rows × columns] as an ImageData of one pixel each. `peak` maps to the brightest colour (signed: to either end),
// `low` to the darkest.
export function paint(values, columns, { kind = "heat", peak = null, low = 0, alpha = 1, without = null } = {}) {
  const rows = values.length / columns;
  const image = new ImageData(columns, rows);
  let largest = peak;
  if (largest === null) {
    largest = 0;
    for (const value of values) largest = Math.max(largest, Math.abs(value));
  }
  const colours = TABLES[kind];
  for (let i = 0; i < values.length; i++) {
    const share = Math.min(1, Math.max(-1, (values[i] - low) / (largest - low || 1)));
    if (without?.has(i)) continue;
    if (!colours) {
      const colour = share < 0 && kind === "tints" ? LESS : MORE;
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = colour[c];
      image.data[4 * i + 3] = 255 * alpha * cover(kind === "tints" ? Math.abs(share) : Math.max(0, share));
      continue;
    }
    const at = 3 * Math.round(255 * (kind === "signed" ? (share + 1) / 2 : Math.max(0, share)));
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = colours[at + c];
    image.data[4 * i + 3] = 255 * alpha;
  }
  return image;
}

// Where the scale ends: a few patches that draw everybody's eyes (artifacts often do) must not darken all others
export function robust(values, without = null, share = 0.97) {
  const sorted = Float32Array.from(without?.size ? values.filter((_, i) => !without.has(i)) : values, Math.abs).sort();
  return sorted[Math.floor(share * (sorted.length - 1))] || sorted.at(-1);
}

// A scale bar's colours as a CSS gradient
export function gradient(kind) {
  if (!TABLES[kind]) {
    const stops = [...Array(17).keys()].map((i) => `rgb(${MORE.join(" ")} / ${cover(i / 16).toFixed(3)}) ${kind === "tints" ? 50 + (50 * i) / 16 : (100 * i) / 16}%`);
    const ramp = `linear-gradient(to right, ${kind === "tints" ? "transparent 50%, " : ""}${stops.join(", ")})`;
    return kind === "tints" ? `${ramp}, linear-gradient(to right, transparent, #fff 50%), ${STRIPES}` : ramp;
  }
  const colours = TABLES[kind];
  const stops = [...Array(9).keys()].map((i) => {
    const start = 3 * Math.round((255 * i) / 8);
    return `rgb(${colours[start]} ${colours[start + 1]} ${colours[start + 2]})`;
  });
  return `linear-gradient(to right, ${stops.join(", ")})`;
}
