// An image file to the numbers that a network gets, as data/preprocess.py does it: upright, on white, resized, cropped.
// Browsers resize in ways of their own, so the resize is Pillow's, to the bit: weights as whole numbers, rows before columns.

const BITS = 22; // of a weight's fraction
const LARGEST = 64_000_000; // pixels, as data/images.py has it
const STRIP = 1 << 22; // pixels that are read from a canvas at a time

const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));
const FILTERS = {
  box: { reach: 0.5, weight: (x) => (x > -0.5 && x <= 0.5 ? 1 : 0) },
  bilinear: { reach: 1, weight: (x) => Math.max(0, 1 - Math.abs(x)) },
  hamming: { reach: 1, weight: (x) => (Math.abs(x) >= 1 ? 0 : sinc(x) * (Math.fround(0.54) + Math.fround(0.46) * Math.cos(Math.PI * x))) },
  bicubic: { reach: 2, weight: cubic },
  lanczos: { reach: 3, weight: (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0) },
};

function cubic(x) {
  const a = -0.5, at = Math.abs(x);
  if (at < 1) return ((a + 2) * at - (a + 3)) * at * at + 1;
  return at < 2 ? (((at - 5) * at + 8) * at - 4) * a : 0;
}

// --- sizes -----------------------------------------------------------------------------------------------------------

// half a pixel to even, as Python rounds
function round(value) {
  const down = Math.floor(value);
  return value - down === 0.5 ? down + (down % 2 === 0 ? 0 : 1) : Math.round(value);
}

// height and width after the resize, before the crop
export function resized({ resize, cover, pad }, height, width) {
  if (resize === null) return [height, width];
  if (typeof resize === "number") {
    const longer = Math.floor((resize * Math.max(height, width)) / Math.min(height, width));
    return height <= width ? [resize, longer] : [longer, resize];
  }
  if (!cover && !pad) return resize;
  const ratios = [height / resize[0], width / resize[1]], ratio = cover ? Math.min(...ratios) : Math.max(...ratios);
  return [Math.max(1, round(height / ratio)), Math.max(1, round(width / ratio))];
}

// where the crop begins along one side; below zero if the image is too small
export function offset({ crop_rounding: rounding }, length, wanted) {
  if (length <= wanted) return -Math.floor((wanted - length) / 2);
  return rounding === "even" ? round((length - wanted) / 2) : Math.floor((length - wanted) / 2);
}

// the part of an image that the network gets: left, top, right, bottom as shares of its sides
export function box(preprocess, height, width) {
  const sizes = resized(preprocess, height, width);
  const [[top, bottom], [left, right]] = sizes.map((length, side) => {
    const start = offset(preprocess, length, preprocess.size[side]);
    return [start / length, (start + preprocess.size[side]) / length];
  });
  return [left, top, right, bottom];
}

// --- resizing --------------------------------------------------------------------------------------------------------

// for each of the new pixels `first` to `last`: where its weights begin, and the weights as whole numbers
function weights(length, size, kind, first, last) {
  const { reach, weight } = FILTERS[kind], scale = length / size, wide = Math.max(scale, 1), support = reach * wide;
  return Array.from({ length: last - first }, (_, i) => {
    const centre = (first + i + 0.5) * scale;
    const from = Math.max(0, Math.trunc(centre - support + 0.5)), to = Math.min(length, Math.trunc(centre + support + 0.5));
    const found = Float64Array.from({ length: to - from }, (_, at) => weight((at + from - centre + 0.5) * (1 / wide)));
    const sum = found.reduce((a, b) => a + b, 0);
    const whole = found.map((value) => Math.trunc((sum ? value / sum : value) * 2 ** BITS + (value < 0 ? -0.5 : 0.5)));
    return { from, whole };
  });
}

// the same where each new pixel is one of the old ones
function nearest(length, size, _, first, last) {
  const found = [], scale = length / size;
  for (let i = 0, at = scale / 2; i < last; i++, at += scale) if (i >= first) found.push({ from: Math.trunc(at), whole: [2 ** BITS] });
  return found;
}

const clip = (value) => (value < 0 ? 0 : value > 255 ? 255 : value);

// rows of pixels [rows length c] to [rows size c]
function across(pixels, rows, length, c, found) {
  const out = new Uint8Array(rows * found.length * c), lists = found.map(({ whole }) => Int32Array.from(whole));
  for (let row = 0, to = 0; row < rows; row++) {
    for (let pixel = 0; pixel < found.length; pixel++) {
      const whole = lists[pixel], first = (row * length + found[pixel].from) * c;
      for (let colour = 0; colour < c; colour++) {
        let sum = 2 ** (BITS - 1);
        for (let i = 0, at = first + colour; i < whole.length; i++, at += c) sum = (sum + Math.imul(pixels[at], whole[i])) | 0;
        out[to++] = clip(sum >> BITS);
      }
    }
  }
  return out;
}

// columns of pixels [length row], read in strips, to [size row]
function down(strips, row, found) {
  const sums = new Float64Array(found.length * row).fill(2 ** (BITS - 1));
  for (const { top, bottom, pixels } of strips) {
    found.forEach(({ from, whole }, i) => {
      for (let k = Math.max(0, top - from); k < Math.min(whole.length, bottom - from); k++) {
        const at = (from + k - top) * row, to = i * row, times = whole[k];
        for (let x = 0; x < row; x++) sums[to + x] += pixels[at + x] * times;
      }
    });
  }
  return Uint8Array.from(sums, (sum) => clip(sum >> BITS));
}

// What the network sees of an image: bytes [h w c]. `read(top, bottom)` gives rows [n width c] of the image
export function view(preprocess, height, width, c, read) {
  const [tall, wide] = resized(preprocess, height, width), [rows, columns] = preprocess.size;
  if (tall * wide > LARGEST) throw new Error(`too long and thin: ${width}×${height} would grow to ${wide}×${tall} before the crop; cut a piece out of it first`);
  const top = offset(preprocess, tall, rows), left = offset(preprocess, wide, columns);
  const [first, last] = [Math.max(0, top), Math.min(tall, top + rows)], [start, end] = [Math.max(0, left), Math.min(wide, left + columns)];
  const pick = preprocess.interpolation === "nearest" ? nearest : weights;
  const horizontal = (wide === width ? nearest : pick)(width, wide, preprocess.interpolation, start, end);
  const vertical = (tall === height ? nearest : pick)(height, tall, preprocess.interpolation, first, last);
  const [begin, finish] = [vertical[0].from, vertical.at(-1).from + vertical.at(-1).whole.length], step = Math.max(1, Math.floor(STRIP / width));
  const columnsFirst = height > tall && height - tall > 2 * (width - wide) && width !== wide; // as Pillow 13 decides
  const strips = function* () {
    for (let row = begin; row < finish; row += step) {
      const to = Math.min(row + step, finish), pixels = read(row, to);
      yield { top: row, bottom: to, pixels: columnsFirst ? pixels : across(pixels, to - row, width, c, horizontal) };
    }
  };
  const shrunk = down(strips(), (columnsFirst ? width : end - start) * c, vertical);
  const inner = columnsFirst ? across(shrunk, last - first, width, c, horizontal) : shrunk, out = new Uint8Array(rows * columns * c); // black beyond the edges
  for (let row = first; row < last; row++) {
    const from = (row - first) * (end - start) * c;
    out.set(inner.subarray(from, from + (end - start) * c), ((row - top) * columns + start - left) * c);
  }
  return out;
}

// bytes [h w c] to what the network gets: [c h w]
export function normalise({ mean, std, size: [height, width] }, pixels) {
  const c = mean.length, found = new Float32Array(c * height * width), f = Math.fround;
  for (let colour = 0; colour < c; colour++) {
    const [less, by] = [f(mean[colour]), f(std[colour])];
    for (let i = 0, at = colour * height * width; i < height * width; i++) found[at + i] = f(f(pixels[i * c + colour] / 255) - less) / by;
  }
  return found;
}

const onWhite = (value, solid) => (solid === 255 ? value : Math.round((value * solid + 255 * (255 - solid)) / 255));

// --- files -----------------------------------------------------------------------------------------------------------

// an image file, decoded by the browser: its size, and its rows as [n width c] on white; a grey network has one colour
export async function open(blob, colours) {
  if (!blob.size) throw new Error("empty file (0 bytes): copy or download it again");
  let bitmap = null;
  try {
    bitmap = await createImageBitmap(blob, { imageOrientation: "from-image", premultiplyAlpha: "none", colorSpaceConversion: "none" });
  } catch {
    throw new Error(await reason(blob));
  }
  const { width, height } = bitmap;
  if (width * height > LARGEST) {
    bitmap.close();
    throw new Error(`too large: ${width}×${height} is ${(width * height).toLocaleString("en")} pixels, the limit is ${LARGEST.toLocaleString("en")}; make it smaller first`);
  }
  const read = (top, bottom) => {
    const canvas = new OffscreenCanvas(width, bottom - top), context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(bitmap, 0, top, width, bottom - top, 0, 0, width, bottom - top);
    const { data } = context.getImageData(0, 0, width, bottom - top), found = new Uint8Array((bottom - top) * width * colours);
    for (let i = 0, to = 0; i < data.length; i += 4) {
      const solid = data[i + 3], red = onWhite(data[i], solid), green = onWhite(data[i + 1], solid), blue = onWhite(data[i + 2], solid);
      if (colours === 1) found[to++] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
      else {
        found[to++] = red;
        found[to++] = green;
        found[to++] = blue;
      }
    }
    return found;
  };
  return { width, height, bitmap, read };
}

// why a file is no image that this browser reads, by how it begins
async function reason(blob) {
  const head = String.fromCharCode(...new Uint8Array(await blob.slice(0, 32).arrayBuffer()));
  if (/^(\xff\xd8\xff|\x89PNG|GIF8|BM|RIFF)/.test(head)) return "damaged or truncated: download it again";
  if (/^....ftyp(hei|hev|mif|msf)/s.test(head)) return "this browser reads no HEIC: save it as JPEG or PNG";
  if (/^(II\*\0|MM\0\*)/.test(head)) return "this browser reads no TIFF: save it as JPEG or PNG";
  if (/^PK\x03\x04/.test(head)) return "a zip archive: drop the images in it";
  if (/^(%PDF|%!PS)/.test(head)) return "a PDF or PostScript document, not an image: export the page as PNG";
  return "not an image that this browser reads: save it as JPEG or PNG";
}
