// A Vision Transformer's forward pass, as models/vit.py writes it, over the functions of kernels.js; and the way back through
// it with attention, norms and gates taken as constants (inside/pruned_gradients.py).
//
// Shapes: n patches · t tokens · d width · h heads · k width of one head · l blocks

const ACTIVATIONS = ["gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh"];
const TANH = ACTIVATIONS.indexOf("tanh");
const SILU = ACTIVATIONS.indexOf("silu");

export class Network {
  // `weights` is a payload of pages/live.py: matrices as 16-bit floats or as bytes with a scale a row, vectors as floats
  constructor(kernels, weights) {
    const { config, tensors, precision } = weights.header.network;
    Object.assign(this, { kernels, config, preprocess: weights.header.network.preprocess });
    this.grid = config.grid;
    this.patches = this.grid[0] * this.grid[1];
    this.prefix = config.class_token + config.distillation_token + config.registers;
    this.tokens = this.prefix + this.patches;
    this.key = config.width / config.heads;
    this.activation = config.swiglu ? SILU : ACTIVATIONS.indexOf(config.activation);
    this.load(weights, tensors, precision);
    this.scratch = kernels.top; // above are the values of one forward pass
  }

  load(weights, tensors, precision) {
    const { kernels } = this;
    const { data: vectors } = weights.array("vectors"), matrices = weights.bytes("matrices");
    this.values = {}; // vectors and tables, as they are
    this.vectors = {}; // their addresses
    this.matrices = {}; // { at, n, k }
    for (const { name, offset, shape } of tensors.vectors) {
      this.values[name] = vectors.slice(offset, offset + shape.reduce((a, b) => a * b, 1));
      this.vectors[name] = kernels.putPadded(this.values[name]);
    }
    const scales = precision === "int8" ? weights.array("scales").data : null;
    const total = tensors.matrices.reduce((sum, { shape: [n, k] }) => sum + n * k, 0);
    let row = 0;
    for (const { name, offset, shape: [n, k] } of tensors.matrices) {
      const at = kernels.takePacked(n, k), free = kernels.top;
      const raw = kernels.take(n * k, 2), wide = kernels.take(n * k);
      if (scales) {
        kernels.bytes(raw, n * k).set(matrices.subarray(offset, offset + n * k));
        const factors = kernels.put(scales.subarray(row, row + n));
        kernels.scale(wide, raw, factors, n, k);
        row += n;
      } else {
        const bytes = kernels.bytes(raw, 2 * n * k); // low bytes of all numbers come before the high ones
        for (let i = 0; i < n * k; i++) {
          bytes[2 * i] = matrices[offset + i];
          bytes[2 * i + 1] = matrices[total + offset + i];
        }
        kernels.widen(wide, raw, n * k);
      }
      kernels.pack(at, wide, n, k, k, 1);
      kernels.release(free);
      this.matrices[name] = { at, n, k };
    }
  }

  // --- parts ---------------------------------------------------------------------------------------------------------

  // out [m n] = a [m k] × matrix + bias; a row of `a` and of `out` may be wider than what is read and written
  linear(out, a, name, m, { wide, apart, first = 0, count } = {}) {
    const { at, n, k } = this.matrices[name], bias = this.vectors[`${name}.bias`] ?? 0;
    this.kernels.product(out, a, at + 4 * first * k, bias && bias + 4 * first, m, count ?? n, k, wide ?? k, apart ?? n, 1);
  }

  norm(out, x, name, m, d = this.config.width) {
    const { norm_eps: eps, norm } = this.config;
    this.kernels.norm(out, x, this.vectors[name] ?? 0, this.vectors[`${name}.bias`] ?? 0, m, d, eps, norm === "rms" ? 1 : 0);
  }

  // the patches of a normalised image [c H W], each times the embedding's matrix: [n d]
  embed(image) {
    const { kernels, config } = this, [p, q] = config.patch, [height, width] = config.size, [rows, columns] = this.grid;
    const { width: d, channels } = config, size = channels * p * q;
    kernels.release(this.scratch);
    const cut = kernels.take(this.patches * size), out = kernels.take(this.patches * d);
    const to = kernels.floats(cut, this.patches * size);
    let at = 0;
    for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) for (let c = 0; c < channels; c++) for (let y = 0; y < p; y++) {
      const from = (c * height + row * p + y) * width + column * q;
      for (let x = 0; x < q; x++) to[at++] = image[from + x];
    }
    this.linear(out, cut, "patch_embed.proj", this.patches);
    if (config.patch_norm) this.norm(out, out, "patch_embed.norm", this.patches);
    return kernels.floats(out, this.patches * d).slice();
  }

  // patches [n d] with the class, distillation and register tokens in front, and positions: [t d]
  assemble(patches) {
    const { config, values, prefix } = this, { width: d } = config;
    const found = new Float32Array(this.tokens * d), { pos_embed: positions } = values;
    let at = 0;
    for (const name of ["cls_token", "dist_token", "reg_token"]) {
      if (!values[name]) continue;
      found.set(values[name], at);
      at += values[name].length;
    }
    found.set(patches, at);
    const from = config.prefix_positions ? 0 : prefix * d;
    if (positions) for (let i = 0; i < positions.length; i++) found[from + i] += positions[i];
    if (!config.embedding_norm) return found;
    const { kernels } = this;
    kernels.release(this.scratch);
    const x = kernels.put(found);
    this.norm(x, x, "norm_pre", this.tokens);
    return kernels.floats(x, found.length).slice();
  }

  // --- the pass ------------------------------------------------------------------------------------------------------

  // tokens [t d] through the blocks and the head. `off` are heads "block.head" and blocks "block" that are switched off; `gone`
  // patches whose tokens are forbidden; `keep` keeps what happens on the way; `from` is the first block to run
  run(tokens, { off = null, gone = null, keep = false, from = 0 } = {}) {
    const { kernels, config } = this, { width: d, depth, heads, mlp_width: hidden, swiglu } = config;
    const t = tokens.length / d;
    kernels.release(this.scratch);
    const x = kernels.put(tokens), y = kernels.take(t * d), qkv = kernels.take(3 * t * d), inner = kernels.take(t * hidden * (swiglu ? 2 : 1) + 4 * d);
    const mask = gone?.size ? kernels.put(Float32Array.from({ length: t }, (_, i) => (gone.has(i - this.prefix) ? -Infinity : 0))) : 0;
    const kept = keep ? { tokens, attention: new Float32Array(depth * heads * t * t), middles: new Float32Array(depth * t * d), outputs: new Float32Array(depth * t * d), hidden: new Float32Array(depth * t * hidden * (swiglu ? 2 : 1)), added: [], queries: [], keys: [] } : null;
    const read = config.pool === "token" ? 1 + (config.distillation_head ? 1 : 0) : t; // rows that the head reads
    for (let block = from; block < depth; block++) {
      const short = !keep && block === depth - 1 && read < t;
      if (!off?.has(String(block))) this.block(block, { x, y, qkv, inner, t, rows: short ? read : t, off, mask, kept });
      else if (keep) kept.middles.set(kernels.floats(x, t * d), block * t * d);
      if (keep) kept.outputs.set(kernels.floats(x, t * d), block * t * d);
    }
    const logits = this.read(kernels.floats(x, t * d).slice(), gone);
    return keep ? { logits, ...kept } : { logits };
  }

  block(block, { x, y, qkv, inner, t, rows, off, mask, kept }) {
    const { kernels, config, vectors } = this, { width: d, mlp_width: hidden, swiglu } = config;
    const name = `blocks.${block}`;
    this.norm(y, x, `${name}.norm1`, t);
    this.attend(block, { x: y, out: y, qkv, t, rows, off, mask, kept });
    this.linear(qkv, y, `${name}.attn.proj`, rows);
    if (kept) kept.added[block] = [lengths(kernels.floats(qkv, t * d), d)];
    kernels.add(x, qkv, vectors[`${name}.ls1`] ?? 0, rows, d);
    if (kept) kept.middles.set(kernels.floats(x, t * d), block * t * d);
    this.norm(y, x, `${name}.norm2`, rows);
    this.linear(inner, y, `${name}.mlp.fc1`, rows);
    if (kept) kept.hidden.set(kernels.floats(inner, t * (swiglu ? 2 : 1) * hidden), block * t * (swiglu ? 2 : 1) * hidden);
    this.gate(inner, rows);
    this.linear(qkv, inner, `${name}.mlp.fc2`, rows, { wide: swiglu ? 2 * hidden : hidden });
    if (kept) kept.added[block].push(lengths(kernels.floats(qkv, t * d), d));
    kernels.add(x, qkv, vectors[`${name}.ls2`] ?? 0, rows, d);
  }

  // the activation of the MLP's hidden layer, in its own memory; of a gated one [m 2 hidden] the first half
  gate(inner, rows) {
    const { kernels, config } = this, { mlp_width: hidden, swiglu } = config;
    if (!swiglu) return kernels.activate(inner, rows * hidden, this.activation);
    for (let row = 0; row < rows; row++) {
      const at = inner + 8 * row * hidden;
      kernels.activate(at, hidden, this.activation);
      kernels.multiply(at, at + 4 * hidden, hidden);
    }
  }

  // what the activation multiplies each number of a block's hidden layer by, taken as a constant: [t hidden]
  gates(block, kept) {
    const { kernels, config } = this, { mlp_width: hidden, swiglu } = config, t = this.tokens, wide = swiglu ? 2 * hidden : hidden;
    const before = kept.hidden.subarray(block * t * wide, (block + 1) * t * wide), free = kernels.top, at = kernels.put(before);
    this.gate(at, t);
    const after = kernels.floats(at, t * wide), found = new Float32Array(t * hidden), shift = swiglu ? hidden : 0;
    for (let row = 0; row < t; row++) {
      for (let i = 0; i < hidden; i++) {
        const input = before[row * wide + shift + i];
        found[row * hidden + i] = Math.abs(input) > 1e-6 ? after[row * wide + i] / input : 0.5;
      }
    }
    kernels.release(free);
    return found;
  }

  // what heads mix, side by side: x [t d] → out [rows d]
  attend(block, { x, out, qkv, t, rows, off, mask, kept }) {
    const { kernels, config, key } = this, { width: d, heads } = config, name = `blocks.${block}.attn`;
    const free = kernels.top, wide = 3 * d;
    if (rows < t && d % 8 === 0) {
      this.linear(qkv, x, `${name}.qkv`, rows, { apart: wide, count: d });
      this.linear(qkv + 4 * d, x, `${name}.qkv`, t, { apart: wide, first: d, count: 2 * d });
    } else this.linear(qkv, x, `${name}.qkv`, t);
    if (config.qk_norm) this.normKeys(name, qkv, t);
    const scores = kernels.take(rows * t), packed = kernels.takePacked(t, key), values = kernels.takePacked(key, t);
    for (let head = 0; head < heads; head++) {
      const q = qkv + 4 * head * key, k = q + 4 * d, v = k + 4 * d;
      kernels.pack(packed, k, t, key, wide, 1);
      kernels.product(scores, q, packed, 0, rows, t, key, wide, t, key ** -0.5);
      kernels.softmax(scores, mask, rows, t);
      if (kept) kept.attention.set(kernels.floats(scores, t * t), (block * heads + head) * t * t);
      if (off?.has(`${block}.${head}`)) {
        const to = kernels.floats(out, rows * d);
        for (let row = 0; row < rows; row++) to.fill(0, row * d + head * key, row * d + (head + 1) * key);
        continue;
      }
      kernels.pack(values, v, key, t, 1, wide);
      kernels.product(out + 4 * head * key, scores, values, 0, rows, key, t, t, d, 1);
    }
    if (kept) for (const [list, from] of [[kept.queries, 0], [kept.keys, d]]) list[block] = strip(kernels.floats(qkv, 3 * t * d), t, wide, from, key);
    kernels.release(free);
  }

  normKeys(name, qkv, t) {
    const { kernels, config, key } = this, { width: d, heads } = config;
    for (let row = 0; row < t; row++) for (let part = 0; part < 2; part++) for (let head = 0; head < heads; head++) {
      const at = qkv + 4 * (row * 3 * d + part * d + head * key);
      this.norm(at, at, `${name}.${part ? "k_norm" : "q_norm"}`, 1, key);
    }
  }

  // --- the head ------------------------------------------------------------------------------------------------------

  // tokens [t d] of any block → logits: the final norm, what the head reads, the head
  read(tokens, gone = null) {
    return this.heads(this.pool(this.normed(tokens), gone));
  }

  normed(tokens) {
    const { kernels, config } = this;
    if (!config.final_norm) return tokens;
    const free = kernels.top, x = kernels.put(tokens);
    this.norm(x, x, "norm", tokens.length / config.width);
    const found = kernels.floats(x, tokens.length).slice();
    kernels.release(free);
    return found;
  }

  // [class token, mean of the patches], side by side if both are read; and what a distillation head reads
  pool(tokens, gone = null) {
    const { config, prefix } = this, { width: d, pool } = config, t = tokens.length / d;
    const parts = [];
    if (pool.includes("token")) parts.push(tokens.slice(0, d));
    if (pool.includes("mean")) {
      const mean = new Float64Array(d);
      let count = 0;
      for (let i = prefix; i < t; i++) {
        if (gone?.has(i - prefix)) continue;
        count++;
        for (let j = 0; j < d; j++) mean[j] += tokens[i * d + j];
      }
      parts.push(Float32Array.from(mean, (value) => value / Math.max(count, 1)));
    }
    const pooled = new Float32Array(parts.length * d);
    parts.forEach((part, i) => pooled.set(part, i * d));
    return config.distillation_head ? [pooled, tokens.slice(d, 2 * d)] : [pooled];
  }

  heads(pooled) {
    const found = pooled.map((values, i) => this.head(values, i ? "head_dist" : "head"));
    return found.length === 1 ? found[0] : found[0].map((value, i) => (value + found[1][i]) / 2);
  }

  head(values, name) {
    const { kernels, config } = this, free = kernels.top;
    let x = kernels.put(values), width = values.length;
    if (config.fc_norm) this.norm(x, x, "fc_norm", 1, width);
    for (const part of [`${name}.hidden`, name]) {
      if (!this.matrices[part]) continue;
      width = this.matrices[part].n;
      const out = kernels.take(width);
      this.linear(out, x, part, 1);
      if (part !== name) kernels.activate(out, width, TANH);
      x = out;
    }
    const found = kernels.floats(x, width).slice();
    kernels.release(free);
    return found;
  }

  // --- the way back --------------------------------------------------------------------------------------------------

  // Each patch's part in the logits of some classes by pruned gradients, the mean over blocks: [classes n]; `kept` is what
  // `run` kept of all tokens
  parts(kept, classes, gone = null) {
    const { kernels, config, prefix } = this, { width: d, depth, mlp_width: hidden } = config;
    const t = this.tokens, count = classes.length, rows = count * t;
    kernels.release(this.scratch);
    const g = kernels.take(rows * d), y = kernels.take(rows * d), inner = kernels.take(rows * hidden), sums = kernels.take(4 * Math.max(d, hidden)), packed = kernels.takePacked(this.key, t);
    const turned = kernels.take(t * t);
    const slopes = this.slopes(kept, classes, gone);
    kernels.floats(g, rows * d).set(slopes);
    const found = Array.from(classes, () => new Float64Array(this.patches));
    const last = kept.outputs.subarray((depth - 1) * t * d);
    if (config.final_norm) this.backNorm(kernels.floats(g, rows * d), last, "norm", count);
    for (let block = depth - 1; block >= 0; block--) {
      const middle = kept.middles.subarray(block * t * d, (block + 1) * t * d);
      const input = block ? kept.outputs.subarray((block - 1) * t * d, block * t * d) : kept.tokens;
      if (!kept.off?.has(String(block))) this.backBlock(block, { kept, g, y, inner, sums, packed, turned, rows, count, middle, input });
      const slopesNow = kernels.floats(g, rows * d);
      for (let c = 0; c < count; c++) {
        for (let i = 0; i < this.patches; i++) {
          let sum = 0;
          for (let j = 0, at = (prefix + i) * d; j < d; j++) sum += slopesNow[c * t * d + at + j] * input[at + j];
          found[c][i] += sum / depth;
        }
      }
    }
    return found;
  }

  // slopes after a block to slopes before it, in their own memory
  backBlock(block, { kept, g, y, inner, sums, packed, turned, rows, count, middle, input }) {
    const { kernels, config } = this, { width: d, mlp_width: hidden, heads, swiglu } = config, t = this.tokens, name = `blocks.${block}`;
    // the MLP
    this.scaled(y, g, `${name}.ls2`, rows);
    const fc2 = this.matrices[`${name}.mlp.fc2`], fc1 = this.matrices[`${name}.mlp.fc1`];
    kernels.back(inner, y, fc2.at, sums, rows, d, hidden, d, hidden);
    const gates = this.gates(block, kept), slope = kernels.floats(inner, rows * hidden);
    for (let c = 0, at = 0; c < count; c++) for (let i = 0; i < gates.length; i++) slope[at++] *= gates[i];
    const skipped = swiglu ? hidden : 0; // the second half is what the gate multiplies
    kernels.back(y, inner, fc1.at + 4 * skipped * d, sums, rows, hidden, d, hidden, d);
    this.backNorm(kernels.floats(y, rows * d), middle, `${name}.norm2`, count);
    kernels.add(g, y, 0, rows, d);
    // attention: only values have slopes
    this.scaled(y, g, `${name}.ls1`, rows);
    const proj = this.matrices[`${name}.attn.proj`], qkv = this.matrices[`${name}.attn.qkv`];
    const mixed = kernels.take(rows * d), values = kernels.take(rows * d);
    kernels.back(mixed, y, proj.at, sums, rows, d, d, d, d);
    for (let head = 0; head < heads; head++) {
      const attention = kept.attention.subarray((block * heads + head) * t * t, (block * heads + head + 1) * t * t);
      const across = kernels.floats(turned, t * t);
      if (kept.off?.has(`${block}.${head}`)) across.fill(0);
      else for (let i = 0; i < t; i++) for (let j = 0; j < t; j++) across[j * t + i] = attention[i * t + j];
      for (let c = 0; c < count; c++) {
        const at = 4 * (c * t * d + head * this.key);
        kernels.pack(packed, mixed + at, this.key, t, 1, d);
        kernels.product(values + at, turned, packed, 0, t, this.key, t, t, d, 1);
      }
    }
    kernels.back(y, values, qkv.at + 4 * 2 * d * d, sums, rows, d, d, d, d);
    this.backNorm(kernels.floats(y, rows * d), input, `${name}.norm1`, count);
    kernels.add(g, y, 0, rows, d);
    kernels.release(mixed);
  }

  // y = factors · g, or a copy
  scaled(y, g, name, rows) {
    const { kernels, config } = this, { width: d } = config, factors = this.values[name];
    const from = kernels.floats(g, rows * d), to = kernels.floats(y, rows * d);
    if (!factors) return void to.set(from);
    for (let row = 0, at = 0; row < rows; row++) for (let i = 0; i < d; i++, at++) to[at] = from[at] * factors[i];
  }

  // slopes after a norm to slopes before it, in their own memory, with its divisor as a constant; `x` [t d] entered the norm
  backNorm(slopes, x, name, count) {
    const { width: d, norm_eps: eps, norm } = this.config, weight = this.values[name], t = x.length / d;
    for (let i = 0; i < t; i++) {
      const own = x.subarray(i * d, (i + 1) * d), divisor = spread(own, eps, norm);
      for (let c = 0; c < count; c++) {
        const at = (c * t + i) * d;
        let mean = 0;
        for (let j = 0; j < d; j++) {
          slopes[at + j] *= weight ? weight[j] : 1;
          mean += slopes[at + j] / d;
        }
        for (let j = 0; j < d; j++) slopes[at + j] = (slopes[at + j] - (norm === "rms" ? 0 : mean)) / divisor;
      }
    }
  }

  // the slopes of some logits at the normed tokens: [classes t d]
  slopes(kept, classes, gone) {
    const { config, prefix } = this, { width: d, depth, pool } = config, t = this.tokens;
    const pooled = this.pool(this.normed(kept.outputs.slice((depth - 1) * t * d)), gone);
    const found = new Float32Array(classes.length * t * d);
    const left = this.patches - (gone?.size ?? 0);
    classes.forEach((target, c) => {
      pooled.forEach((values, which) => {
        const slope = this.backHead(values, which ? "head_dist" : "head", target).map((value) => value / pooled.length);
        const own = found.subarray(c * t * d, (c + 1) * t * d);
        if (which) return own.subarray(d, 2 * d).forEach((_, i, part) => { part[i] += slope[i]; });
        let at = 0;
        if (pool.includes("token")) for (; at < d; at++) own[at] += slope[at];
        if (pool.includes("mean")) for (let i = prefix; i < t; i++) if (!gone?.has(i - prefix)) for (let j = 0; j < d; j++) own[i * d + j] += slope[at + j] / left;
      });
    });
    return found;
  }

  // the slope of one logit at what its head reads, with the norm's divisor and the activation's gate as constants
  backHead(values, name, target) {
    const { kernels, config, matrices } = this, { at, n, k } = matrices[name], hidden = matrices[`${name}.hidden`];
    const group = kernels.floats(at + 4 * Math.floor(target / 8) * 8 * k, 8 * k);
    let slope = Float64Array.from({ length: k }, (_, i) => group[8 * i + (target % 8)]);
    if (hidden) {
      const free = kernels.top, x = kernels.put(values), out = kernels.take(hidden.n);
      if (config.fc_norm) this.norm(x, x, "fc_norm", 1, values.length);
      this.linear(out, x, `${name}.hidden`, 1);
      const before = kernels.floats(out, hidden.n).slice();
      kernels.activate(out, hidden.n, TANH);
      const active = kernels.floats(out, hidden.n);
      slope = slope.map((value, i) => value * (Math.abs(before[i]) < 1e-6 ? 1 : active[i] / before[i]));
      const from = kernels.put(slope), to = kernels.take(hidden.k), sums = kernels.take(4 * hidden.k);
      kernels.back(to, from, hidden.at, sums, 1, hidden.n, hidden.k, hidden.n, hidden.k);
      slope = Float64Array.from(kernels.floats(to, hidden.k));
      kernels.release(free);
    }
    if (!config.fc_norm) return slope;
    const weight = this.values.fc_norm;
    slope = slope.map((value, i) => value * (weight ? weight[i] : 1));
    const mean = config.norm === "rms" ? 0 : slope.reduce((a, b) => a + b, 0) / slope.length;
    const divisor = spread(values, config.norm_eps, config.norm);
    return slope.map((value) => (value - mean) / divisor);
  }
}

// what a norm divides a token by
function spread(x, eps, norm) {
  const d = x.length;
  let mean = 0, square = 0;
  if (norm !== "rms") for (let j = 0; j < d; j++) mean += x[j] / d;
  for (let j = 0; j < d; j++) square += (x[j] - mean) ** 2 / d;
  return Math.sqrt(square + eps);
}

// the length of each row [m d]
function lengths(values, d) {
  return Float32Array.from({ length: values.length / d }, (_, row) => {
    let sum = 0;
    for (let i = row * d; i < (row + 1) * d; i++) sum += values[i] * values[i];
    return Math.sqrt(sum);
  });
}

// some columns of a matrix [t wide]
function strip(values, t, wide, from, count) {
  const found = new Float32Array(t * count);
  for (let row = 0; row < t; row++) found.set(values.subarray(row * wide + from, row * wide + from + count), row * count);
  return found;
}
