// Bytes to numbers: the other end of pages/payload.py. A payload is the header's length, the header (JSON), then a block of
// bytes that the header's arrays and files lie in.

const TYPES = { uint8: Uint8Array, int8: Int8Array, float32: Float32Array, int32: Int32Array };

export class Payload {
  constructor(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    this.buffer = buffer;
    this.start = 4 + length;
    this.header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    this.kept = new Map();
  }

  // what came later of the same page: its arrays lie in a buffer of their own, counted from the first payload's start
  add(part) {
    const home = { buffer: part.buffer, start: part.start - part.header.from };
    for (const kind of ["arrays", "files"]) {
      for (const [name, entry] of Object.entries(part.header[kind])) {
        this.header[kind][name] = { ...entry, home };
        this.kept.delete(name);
        if (kind === "arrays" && !(`${name}.scale` in part.header.arrays)) delete this.header.arrays[`${name}.scale`]; // the former one's
      }
    }
  }

  has(name) {
    return name in this.header.arrays;
  }

  // { data, shape, scale }: `scale` is null where values are stored as they are
  array(name) {
    if (!this.kept.has(name)) {
      const entry = this.header.arrays[name];
      const count = entry.shape.reduce((a, b) => a * b, 1);
      const { buffer, start } = entry.home ?? this;
      const from = start + entry.offset;
      if (entry.symmetric) this.kept.set(name, whole(new Int8Array(buffer, from), entry));
      else this.kept.set(name, { data: new TYPES[entry.type](buffer, from, count), shape: entry.shape, scale: this.has(`${name}.scale`) ? this.array(`${name}.scale`).data : null });
    }
    return this.kept.get(name);
  }

  bytes(name) {
    const entry = this.header.files[name], { buffer, start } = entry.home ?? this;
    return new Uint8Array(buffer, start + entry.offset, entry.length);
  }

  // let go of the last file, where it is not needed any more
  forget(name) {
    this.buffer = this.buffer.slice(0, this.start + this.header.files[name].offset);
    delete this.header.files[name];
    this.kept.clear();
  }

  file(name, type) {
    return this.header.files[name] ? new Blob([this.bytes(name)], { type }) : null;
  }
}

// Symmetric matrices from their upper halves; the diagonal is 1
function whole(half, { shape, symmetric }) {
  const size = shape.at(-1), count = shape.slice(0, -2).reduce((a, b) => a * b, 1);
  const data = new Int8Array(count * size * size);
  for (let matrix = 0, from = 0; matrix < count; matrix++) {
    for (let row = 0; row < size; row++) {
      const at = (matrix * size + row) * size;
      data[at + row] = symmetric;
      for (let column = row + 1; column < size; column++) data[at + column] = data[(matrix * size + column) * size + row] = half[from++];
    }
  }
  return { data, shape, scale: new Float32Array(count * size).fill(1 / symmetric) };
}

// from the text that a report carries: gzip in base 85, five letters for four bytes
export function fromText(text) {
  return fromBytes(unpack(text.trim()));
}

// from gzip
export async function fromBytes(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Payload(await new Response(stream).arrayBuffer());
}

const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";

function unpack(text) {
  const digits = new Uint8Array(128), groups = Math.ceil(text.length / 5), missing = 5 * groups - text.length;
  [...LETTERS].forEach((letter, digit) => { digits[letter.charCodeAt(0)] = digit; });
  const bytes = new DataView(new ArrayBuffer(4 * groups)), whole = text.padEnd(5 * groups, LETTERS.at(-1));
  for (let group = 0, at = 0; group < groups; group++) {
    let value = 0;
    for (let i = 0; i < 5; i++) value = 85 * value + digits[whole.charCodeAt(at++)];
    bytes.setUint32(4 * group, value);
  }
  return new Uint8Array(bytes.buffer, 0, 4 * groups - missing);
}

// One slice of an array, along its scale or else its first axis: values [count] of slice `index`
export function slice(payload, name, index) {
  const { data, shape, scale } = payload.array(name);
  const slices = scale ? scale.length : shape[0];
  const count = data.length / slices;
  const values = new Float32Array(count);
  for (let i = 0; i < count; i++) values[i] = data[index * count + i] * (scale ? scale[index] : 1);
  return values;
}
