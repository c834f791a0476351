// The arithmetic of a Vision Transformer over one memory: kernels.wasm, or the same functions in plain JavaScript where a
// browser has no WebAssembly with SIMD. An address is a number of bytes; kernels.c says what each function computes.

const BOTTOM = 131072; // below are the stack and the constants of kernels.wasm
const PAGE = 65536;
const LARGEST = 65536; // pages: 4 GiB
const GROUP = 8;
const ROOM = 64; // bytes that addresses are multiples of

export class Kernels {
  // from the bytes of kernels.wasm, or without them in plain JavaScript
  static async create(bytes) {
    if (bytes && globalThis.WebAssembly) {
      try {
        const memory = new WebAssembly.Memory({ initial: 64, maximum: LARGEST });
        const { instance } = await WebAssembly.instantiate(bytes, { env: { memory } });
        return new Kernels(memory, instance.exports);
      } catch (error) {
        if (error instanceof RangeError) throw error; // no memory: plain JavaScript would need as much
      }
    }
    return new Kernels(null, null);
  }

  constructor(memory, functions) {
    Object.assign(this, { memory, top: BOTTOM, plain: functions === null });
    this.held = memory ? null : new ArrayBuffer(64 * PAGE);
    Object.assign(this, functions ?? scripted(this));
  }

  get buffer() {
    return this.memory ? this.memory.buffer : this.held;
  }

  // room for so many numbers, or bytes; it is kept until `release` goes back to an address below
  take(count, bytes = 4) {
    const address = this.top;
    this.top = Math.ceil((address + count * bytes) / ROOM) * ROOM;
    const missing = this.top - this.buffer.byteLength;
    if (missing > 0) this.grow(Math.ceil(missing / PAGE));
    return address;
  }

  grow(pages) {
    if (this.memory) return void this.memory.grow(pages);
    const larger = new ArrayBuffer(this.held.byteLength + Math.max(pages * PAGE, this.held.byteLength / 2));
    new Uint8Array(larger).set(new Uint8Array(this.held));
    this.held = larger;
  }

  release(address) {
    this.top = address;
  }

  floats(address, count) {
    return new Float32Array(this.buffer, address, count);
  }

  bytes(address, count) {
    return new Uint8Array(this.buffer, address, count);
  }

  // numbers into memory, at a new address
  put(values) {
    const address = this.take(values.length);
    this.floats(address, values.length).set(values);
    return address;
  }

  // a bias for `product`, which reads whole groups of 8
  putPadded(values) {
    const address = this.take(Math.ceil(values.length / GROUP) * GROUP);
    this.floats(address, Math.ceil(values.length / GROUP) * GROUP).fill(0).set(values);
    return address;
  }

  // room for a matrix [n k] as `product` wants it
  takePacked(n, k) {
    return this.take(Math.ceil(n / GROUP) * GROUP * k);
  }
}

// --- the same without WebAssembly ------------------------------------------------------------------------------------

const ACTIVATIONS = [
  (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2)),
  (x) => x / (1 + Math.exp(-2 * 0.7978845608028654 * (x + 0.044715 * x * x * x))),
  (x) => x / (1 + Math.exp(-1.702 * x)),
  (x) => Math.max(x, 0),
  (x) => x / (1 + Math.exp(-x)),
  Math.tanh,
];

function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const found = 1 - ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t * Math.exp(-x * x);
  return x < 0 ? -found : found;
}

function scripted(kernels) {
  const all = () => new Float32Array(kernels.buffer);
  return {
    widen(out, from, count) {
      const f = all(), halves = new Uint16Array(kernels.buffer, from, count);
      for (let i = 0; i < count; i++) {
        const half = halves[i], exponent = (half >> 10) & 31, part = half & 1023;
        const size = exponent === 31 ? (part ? NaN : Infinity) : exponent ? (1 + part / 1024) * 2 ** (exponent - 15) : part * 2 ** -24;
        f[out / 4 + i] = half & 0x8000 ? -size : size;
      }
    },
    scale(out, from, scales, rows, columns) {
      const f = all(), bytes = new Int8Array(kernels.buffer, from, rows * columns);
      for (let row = 0, at = 0; row < rows; row++) for (let i = 0; i < columns; i++, at++) f[out / 4 + at] = bytes[at] * f[scales / 4 + row];
    },
    pack(out, w, n, k, down, across) {
      const f = all();
      let to = out / 4;
      for (let first = 0; first < n; first += GROUP) for (let i = 0; i < k; i++) for (let j = first; j < first + GROUP; j++) f[to++] = j < n ? f[w / 4 + j * down + i * across] : 0;
    },
    product(c, a, packed, bias, m, n, k, wide, out, factor) {
      const f = all(), sums = new Float64Array(GROUP);
      for (let first = 0, group = packed / 4; first < n; first += GROUP, group += GROUP * k) {
        const left = Math.min(GROUP, n - first);
        for (let row = 0; row < m; row++) {
          sums.fill(0);
          for (let i = 0, w = group, from = a / 4 + row * wide; i < k; i++, w += GROUP) {
            const x = f[from + i];
            for (let j = 0; j < GROUP; j++) sums[j] += x * f[w + j];
          }
          for (let j = 0; j < left; j++) f[c / 4 + row * out + first + j] = factor * sums[j] + (bias ? f[bias / 4 + first + j] : 0);
        }
      }
    },
    back(c, a, packed, _, m, n, k, wide, out) {
      const f = all(), sums = new Float64Array(k);
      for (let row = 0; row < m; row++) {
        sums.fill(0);
        for (let first = 0, w = packed / 4; first < n; first += GROUP) {
          const left = Math.min(GROUP, n - first), from = a / 4 + row * wide + first;
          for (let i = 0; i < k; i++, w += GROUP) for (let j = 0; j < left; j++) sums[i] += f[from + j] * f[w + j];
        }
        for (let i = 0; i < k; i++) f[c / 4 + row * out + i] = sums[i];
      }
    },
    norm(out, x, weight, bias, m, d, eps, rms) {
      const f = all();
      for (let row = 0; row < m; row++) {
        const from = x / 4 + row * d, to = out / 4 + row * d;
        let mean = 0, square = 0;
        if (!rms) for (let i = 0; i < d; i++) mean += f[from + i] / d;
        for (let i = 0; i < d; i++) square += (f[from + i] - mean) ** 2 / d;
        const factor = 1 / Math.sqrt(square + eps);
        for (let i = 0; i < d; i++) f[to + i] = (f[from + i] - mean) * factor * (weight ? f[weight / 4 + i] : 1) + (bias ? f[bias / 4 + i] : 0);
      }
    },
    softmax(x, mask, m, n) {
      const f = all();
      for (let row = 0, from = x / 4; row < m; row++, from += n) {
        let most = -Infinity, sum = 0;
        for (let i = 0; i < n; i++) {
          if (mask) f[from + i] += f[mask / 4 + i];
          most = Math.max(most, f[from + i]);
        }
        for (let i = 0; i < n; i++) sum += f[from + i] = Math.exp(f[from + i] - most);
        for (let i = 0; i < n; i++) f[from + i] /= sum;
      }
    },
    activate(x, count, kind) {
      const f = all(), act = ACTIVATIONS[kind] ?? Math.tanh;
      for (let i = x / 4; i < x / 4 + count; i++) f[i] = act(f[i]);
    },
    add(x, y, factors, m, d) {
      const f = all();
      for (let row = 0, at = 0; row < m; row++) for (let i = 0; i < d; i++, at++) f[x / 4 + at] += (factors ? f[factors / 4 + i] : 1) * f[y / 4 + at];
    },
    multiply(x, y, count) {
      const f = all();
      for (let i = 0; i < count; i++) f[x / 4 + i] *= f[y / 4 + i];
    },
  };
}
