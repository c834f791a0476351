// The network of a live page in front of one image: every view that needs no gradient but the pruned one, computed as views/*.py
// and inside/*.py do. Words come from the report's own payload, whose results are templates: only numbers are new.
//
// Shapes: n patches · t tokens · d width · h heads · l blocks

import { Contributions } from "./contributions.js";
import { box, normalise, open, view } from "./pixels.js";

const SHARP = 256; // pixels of a side that let a photograph be recognised, as views/inspection.py has it
const LARGEST_SIDE = 400; // pixels of the image as it came, on the page
const STRIP = 64; // numbers of a token that the story draws
const STABLE = 0.99; // the share of a map's variance that is not error, from which on its ranking counts as stable
const RANKED = 16; // heads that are listed by name
const SHOWN = 8; // classes that are named

const count = (n) => [...Array(n).keys()];

// A payload as pages/payload.py writes it: a header, and arrays and files after it
export class Part {
  constructor(header) {
    Object.assign(this, { header: { from: 0, ...header, arrays: {}, files: {} }, parts: [], length: 0 });
  }

  append(bytes) {
    const offset = this.length;
    this.parts.push(bytes);
    this.length += Math.ceil(bytes.length / 8) * 8;
    return offset;
  }

  add(name, values, shape) {
    const type = values.constructor.name.replace("Array", "").toLowerCase();
    this.header.arrays[name] = { type, shape, offset: this.append(new Uint8Array(values.buffer, values.byteOffset, values.byteLength)) };
    return this;
  }

  file(name, bytes) {
    this.header.files[name] = { offset: this.append(bytes), length: bytes.length };
    return this;
  }

  get buffer() {
    const head = new TextEncoder().encode(JSON.stringify(this.header)), length = Math.ceil((head.length + 4) / 8) * 8 - 4;
    const whole = new Uint8Array(4 + length + this.length).fill(32, 4, 4 + length);
    new DataView(whole.buffer).setUint32(0, length, true);
    whole.set(head, 4);
    let at = 4 + length;
    for (const bytes of this.parts) {
      whole.set(bytes, at);
      at += Math.ceil(bytes.length / 8) * 8;
    }
    return whole.buffer;
  }
}

// bytes [h w c] as a PNG
async function encoded(pixels, [height, width]) {
  const canvas = new OffscreenCanvas(width, height), image = new ImageData(width, height), c = pixels.length / (width * height);
  for (let i = 0; i < width * height; i++) {
    for (let k = 0; k < 3; k++) image.data[4 * i + k] = pixels[c * i + (c === 3 ? k : 0)];
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return new Uint8Array(await (await canvas.convertToBlob({ type: "image/png" })).arrayBuffer());
}

// the part of an image [h w c] that patches read, from its top left, and its size
export function topLeft(pixels, [height, width], [rows, columns]) {
  const c = pixels.length / (width * height), found = new Uint8Array(rows * columns * c);
  for (let row = 0; row < rows; row++) found.set(pixels.subarray(row * width * c, (row * width + columns) * c), row * columns * c);
  return [found, [rows, columns]];
}

export function softmax(logits) {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const raised = Float64Array.from(logits, (value) => Math.exp(value - most)), sum = raised.reduce((a, b) => a + b, 0);
  return Float32Array.from(raised, (value) => value / sum);
}

// a class's log-odds against all others
export function logOdds(logits, target) {
  let most = -Infinity, sum = 0;
  logits.forEach((value, i) => { if (i !== target) most = Math.max(most, value); });
  logits.forEach((value, i) => { if (i !== target) sum += Math.exp(value - most); });
  return logits[target] - most - Math.log(sum);
}

// indices from the highest value to the lowest; equal ones in their order
const ranked = (values) => [...values.keys()].sort((a, b) => values[b] - values[a] || a - b);

// An image [c H W] blurred as widely as a patch, by a Gaussian that is reflected at the edges (inside/hiding.py)
export function blurred(image, c, [height, width], [rows, columns]) {
  let found = image;
  for (const [size, apart, spread] of [[height, width, height / rows], [width, 1, width / columns]]) {
    const reach = Math.min(Math.round(3 * spread), size - 1), weights = Float64Array.from({ length: 2 * reach + 1 }, (_, i) => Math.exp(-0.5 * ((i - reach) / spread) ** 2));
    const total = weights.reduce((a, b) => a + b, 0), next = new Float32Array(found.length), line = new Float64Array(size + 2 * reach);
    const lines = (c * height * width) / size;
    for (let k = 0; k < lines; k++) {
      const first = apart === 1 ? k * width : Math.floor(k / width) * height * width + (k % width);
      for (let i = -reach; i < size + reach; i++) line[i + reach] = found[first + apart * (i < 0 ? -i : i >= size ? 2 * size - 2 - i : i)];
      for (let i = 0; i < size; i++) {
        let sum = 0;
        for (let j = 0; j < weights.length; j++) sum += weights[j] * line[i + j];
        next[first + apart * i] = sum / total;
      }
    }
    found = next;
  }
  return found;
}

// What the page needs of an image: a file, or what the network saw of an image of the report (`seen`)
export async function look(blob, preprocess, seen = false) {
  const c = preprocess.mean.length, image = await open(blob, c), { width, height, read, bitmap } = image, [rows, columns] = preprocess.size;
  const found = { width, height, seen: seen ? read(0, height) : view(preprocess, height, width, c, read) };
  found.shown = [found.seen, [rows, columns]];
  const sides = typeof preprocess.resize === "number" ? [preprocess.resize, preprocess.resize] : preprocess.resize;
  const larger = sides ? Math.floor(Math.min(SHARP, width, height) / Math.max(rows, columns, ...sides)) : 1;
  if (!seen && larger > 1) {
    const resize = typeof preprocess.resize === "number" ? preprocess.resize * larger : preprocess.resize.map((side) => side * larger);
    const sharp = { ...preprocess, resize, size: [rows * larger, columns * larger] };
    found.shown = [view(sharp, height, width, c, read), sharp.size];
  }
  found.small = seen ? null : await thumbnail(bitmap);
  bitmap.close();
  found.x = normalise(preprocess, found.seen);
  return found;
}

export class Inspection {
  // `template` is the header of the report's payload; `check(title, done, of)` reports how far a view is, and ends an old question
  constructor(network, weights, template, check) {
    Object.assign(this, { network, weights, template, check, constants: weights.header.network.constants });
    this.views = new Map(template.views.map((view) => [view.name, view]));
    this.fitting = null;
  }

  label(index) {
    return this.template.classNames?.[index] ?? `class ${index}`;
  }

  // --- the image -----------------------------------------------------------------------------------------------------

  // an image that was looked at, with some of its patches blurred
  take(found, blur = null) {
    Object.assign(this, found);
    if (blur?.size) this.blur(blur);
    this.patches = this.network.embed(this.x);
    this.tokens = this.network.assemble(this.patches);
  }

  // some patches of the image itself, blurred
  blur(patches) {
    const { preprocess, config, grid } = this.network, { mean, std } = preprocess, c = mean.length, [height, width] = config.size;
    const soft = blurred(this.x, c, [height, width], grid), [p, q] = config.patch;
    this.seen = this.seen.slice();
    this.x = this.x.slice();
    for (const patch of patches) {
      const [row, column] = [Math.floor(patch / grid[1]), patch % grid[1]];
      for (let colour = 0; colour < c; colour++) for (let y = row * p; y < (row + 1) * p; y++) for (let x = column * q; x < (column + 1) * q; x++) {
        const at = (colour * height + y) * width + x;
        this.x[at] = soft[at];
        this.seen[(y * width + x) * c + colour] = Math.round(255 * Math.min(1, Math.max(0, soft[at] * std[colour] + mean[colour])));
      }
    }
    this.shown = [this.seen, [height, width]];
  }

  // --- the parts of the page -----------------------------------------------------------------------------------------

  // the answers first, then a part for each view
  async *stages({ name, classes, off, gone, compare }) {
    const { network, constants } = this, { depth, heads, width: d } = network.config;
    this.off = off;
    this.gone = gone;
    this.found = network.run(this.tokens, { off, gone, keep: true });
    this.found.off = off;
    const { logits } = this.found, probabilities = softmax(logits), order = ranked(logits);
    this.order = order;
    this.classes = classes.length > 1 ? [...new Set(classes)] : [...new Set([...classes, ...order.slice(0, constants.explained)])].slice(0, constants.explained);
    [this.target] = this.classes;
    this.probabilities = probabilities;
    this.artifacts = this.findArtifacts();
    const header = this.header(name);
    yield new Part(header).add("probabilities", probabilities, [probabilities.length]).file("image", await encoded(...this.shown));
    const t = network.tokens, part = (...names) => new Part({ views: names.map((each) => this.filled(each)) });
    const rows = this.has("attention-rows")?.results[0];
    if (rows) yield part("predictions", "attention-rows", "attention-maps", "attention-matrix").add(rows.array, this.found.attention, [depth, heads, t, t]);
    yield* this.tokenViews(part);
    yield await this.imageViews(part);
    if (compare) yield new Part({ views: [] }).add("joint/directions", this.directions(), [depth, network.patches, d]);
    yield* this.evidence(part);
    yield* this.ablation(part);
  }

  has(name) {
    return this.views.get(name);
  }

  // a view with results of its own: the template's, with what is new about this image
  filled(name, changes = () => ({})) {
    const view = this.has(name);
    if (!view) return { name, results: [] };
    if (name === "predictions") changes = () => this.predictions();
    const { patches, block } = this.artifacts;
    const results = view.results.map((result) => ({ ...result, ...("outliers" in result ? { outliers: patches, outliers_from: block } : {}), ...changes(result) }));
    return { name, results };
  }

  predictions() {
    const best = this.order.slice(0, SHOWN);
    return { names: best.map((i) => this.label(i)), values: best.map((i) => this.probabilities[i]), logits: best.map((i) => this.found.logits[i]), indices: best };
  }

  header(name) {
    const { template, network } = this, { preprocess } = network;
    const named = (index) => ({ index, class_name: this.label(index), probability: this.probabilities[index], logit: this.found.logits[index] });
    const pixels = (share, side) => Math.round(100 * Math.min(1, Math.max(0, share)) * side) / 100;
    const [left, top, right, bottom] = box(preprocess, this.height, this.width);
    const crop = [pixels(left, this.width), pixels(top, this.height), pixels(right, this.width), pixels(bottom, this.height)];
    const image = { name, size: [this.width, this.height], crop, preprocess: this.weights.header.network.described };
    const views = template.views.map((view) => ({ ...view, results: [] }));
    return { ...template, image, artifacts: this.artifacts.words, start: { ...template.start, class: this.target }, predictions: this.order.slice(0, template.predictions.length).map(named), classes: this.classes.map(named), views };
  }

  // patches whose tokens are outliers (inside/artifacts.py)
  findArtifacts() {
    const { network, constants } = this, { depth, width: d } = network.config, n = network.patches, t = network.tokens;
    const norms = new Float32Array(depth * n), out = new Set();
    let first = depth;
    const usual = count(depth).map((block) => {
      for (let i = 0; i < n; i++) {
        let sum = 0;
        for (let j = 0, at = (block * t + network.prefix + i) * d; j < d; j++) sum += this.found.outputs[at + j] ** 2;
        norms[block * n + i] = Math.sqrt(sum);
      }
      const own = norms.subarray(block * n, (block + 1) * n), middle = own.slice().sort()[Math.floor((n - 1) / 2)];
      own.forEach((value, i) => {
        if (!(value > constants.outlier * middle)) return;
        out.add(i);
        first = Math.min(first, block);
      });
      return middle;
    });
    this.norms = norms;
    if (!out.size) return { patches: [], block: 0, words: null };
    const patches = [...out].sort((a, b) => a - b), means = usual.map((_, block) => patches.reduce((sum, i) => sum + norms[block * n + i], 0) / patches.length);
    const largest = means.indexOf(Math.max(...means)), words = constants.artifacts[patches.length === 1 ? 0 : 1];
    const values = { count: patches.length, block: first, norm: means[largest].toFixed(0), usual: usual[largest].toFixed(0) };
    return { patches, block: first, words: { patches, block: first, said: words.replace(/\{(\w+)\}/g, (_, key) => values[key]) } };
  }

  // each patch's token as a unit vector after each block: [l n d]
  directions() {
    const { network, found } = this, { depth, width: d } = network.config, n = network.patches, values = new Float32Array(depth * n * d);
    for (let block = 0, to = 0; block < depth; block++) for (let i = 0; i < n; i++, to += d) {
      const at = (block * network.tokens + network.prefix + i) * d, norm = Math.max(this.norms[block * n + i], 1e-12);
      for (let j = 0; j < d; j++) values[to + j] = found.outputs[at + j] / norm;
    }
    return values;
  }

  // --- views of tokens and attention ---------------------------------------------------------------------------------

  *tokenViews(part) {
    const { network, found } = this, { depth, heads, width: d } = network.config, t = network.tokens, n = network.patches;
    const arrayOf = (name) => this.has(name)?.results[0].array;
    if (this.has("similarity")) yield part("similarity").add(arrayOf("similarity"), this.similarity(), [depth, n, n]);
    if (this.has("lens")) {
      const layers = [this.tokens, ...count(depth).map((block) => found.outputs.slice(block * t * d, (block + 1) * t * d))].map((tokens) => softmax(network.read(tokens, this.gone)));
      const best = layers.map((shares) => shares.indexOf(Math.max(...shares))), curves = Float32Array.from(this.classes.flatMap((index) => layers.map((shares) => shares[index])));
      const result = { answers: best.map((i) => this.label(i)), probabilities: best.map((i, k) => layers[k][i]), names: { class: this.classes.map((i) => this.label(i)) } };
      yield new Part({ views: [this.filled("lens", () => result)] }).add(arrayOf("lens"), curves, [this.classes.length, depth + 1]);
    }
    if (this.has("rollout")) yield part("rollout").add(arrayOf("rollout"), this.rollout(), [t, t]);
    if (this.has("token-norms")) yield part("token-norms").add(arrayOf("token-norms"), this.norms, [depth, n]);
    const { distance, entropy } = this.spread();
    if (this.has("distance")) yield part("distance").add(arrayOf("distance"), distance, [depth, heads]);
    if (this.has("entropy")) yield part("entropy").add(arrayOf("entropy"), entropy, [depth, heads]);
    if (this.has("story")) yield this.story();
  }

  similarity() {
    const { network } = this, { kernels } = network, { depth, width: d } = network.config, n = network.patches, directions = this.directions();
    const values = new Float32Array(depth * n * n);
    kernels.release(network.scratch);
    const x = kernels.take(n * d), packed = kernels.takePacked(n, d), out = kernels.take(n * n);
    for (let block = 0; block < depth; block++) {
      kernels.floats(x, n * d).set(directions.subarray(block * n * d, (block + 1) * n * d));
      kernels.pack(packed, x, n, d, d, 1);
      kernels.product(out, x, packed, 0, n, n, d, d, n, 1);
      values.set(kernels.floats(out, n * n), block * n * n);
    }
    return values;
  }

  // attention multiplied through all blocks, half of each token passing by (inside/rollout.py): [t t]
  rollout() {
    const { network, found } = this, { kernels } = network, { depth, heads } = network.config, t = network.tokens;
    kernels.release(network.scratch);
    const total = kernels.take(t * t), flow = kernels.take(t * t), packed = kernels.takePacked(t, t);
    for (let block = 0; block < depth; block++) {
      const own = kernels.floats(flow, t * t).fill(0);
      for (let head = 0; head < heads; head++) for (let i = 0, at = (block * heads + head) * t * t; i < t * t; i++) own[i] += found.attention[at + i] / heads;
      for (let row = 0; row < t; row++) {
        const sum = own.subarray(row * t, (row + 1) * t).reduce((a, b) => a + b, 0);
        for (let i = 0; i < t; i++) own[row * t + i] = 0.5 * (sum > 0 ? own[row * t + i] / sum : Number(i === row)) + 0.5 * Number(i === row);
      }
      if (block === 0) kernels.floats(total, t * t).set(own);
      else {
        kernels.pack(packed, total, t, t, 1, t);
        kernels.product(total, flow, packed, 0, t, t, t, t, t, 1);
      }
    }
    return kernels.floats(total, t * t).slice();
  }

  // how far and how widely each head attends: [l h] in pixels and in nats
  spread() {
    const { network, found } = this, { depth, heads, patch } = network.config, { grid, prefix, tokens: t, patches: n } = network;
    const away = new Float32Array(n * n), distance = new Float32Array(depth * heads), entropy = new Float32Array(depth * heads);
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) away[i * n + j] = Math.hypot((Math.floor(i / grid[1]) - Math.floor(j / grid[1])) * patch[0], ((i % grid[1]) - (j % grid[1])) * patch[1]);
    for (let head = 0; head < depth * heads; head++) {
      let wide = 0, far = 0, rows = 0;
      for (let i = 0; i < t; i++) {
        let sum = 0, part = 0;
        for (let j = 0, at = (head * t + i) * t; j < t; j++) {
          const share = found.attention[at + j];
          if (share > 0) wide -= share * Math.log(share);
          if (i >= prefix && j >= prefix) {
            sum += share;
            part += share * away[(i - prefix) * n + j - prefix];
          }
        }
        if (sum > 0) {
          far += part / sum;
          rows++;
        }
      }
      distance[head] = far / rows;
      entropy[head] = wide / t;
    }
    return { distance, entropy };
  }

  story() {
    const { network, found, template } = this, { width: d } = network.config, { prefix, patches: n, tokens: t, key } = network;
    const [result] = this.has("story").results, { block } = result, strip = Math.min(STRIP, d), before = this.templateTarget;
    const start = new Float32Array(n * strip), positions = new Float32Array(n * strip);
    for (let i = 0; i < n; i++) for (let j = 0; j < strip; j++) {
      start[i * strip + j] = this.patches[i * d + j];
      positions[i * strip + j] = this.tokens[(prefix + i) * d + j] - this.patches[i * d + j];
    }
    const steps = result.steps.map((step) => ({ ...step, text: step.text.replaceAll(`“${before}”`, `“${this.label(this.target)}”`) }));
    const part = new Part({ views: [this.filled("story", () => ({ steps }))] }).add(result.embedding, start, [n, strip]);
    if (result.positions) part.add(result.positions, positions, [n, strip]);
    const added = new Float32Array(2 * n), silent = [new Float32Array(t), new Float32Array(t)]; // of a block that is switched off
    (found.added[block] ?? silent).forEach((lengths, i) => added.set(lengths.subarray(prefix), i * n));
    for (const [name, lists] of [["q", found.queries], ["k", found.keys]]) part.add(result[name], lists[block] ?? new Float32Array(t * key), [t, key]);
    return part.add(result.added, added, [2, n]);
  }

  // the class whose name stands in the template's words
  get templateTarget() {
    return this.template.classes[0].class_name;
  }

  // what the network sees, and its patches
  async imageViews(part) {
    const { network } = this, { preprocess, grid } = network, found = part("patches"), seen = await encoded(this.seen, preprocess.size);
    const [input] = this.has("input")?.results ?? [], [tiles] = this.has("patches")?.results ?? [];
    if (tiles) found.file(tiles.file, await encoded(...topLeft(this.seen, preprocess.size, network.config.patch.map((side, i) => side * grid[i]))));
    if (!input) return found;
    if (!this.small) {
      found.header.views.push(this.filled("input"));
      return found.file(input.seen, seen);
    }
    const [rows, columns] = preprocess.size;
    const captions = [`${this.height} × ${this.width} pixels, as it came`, `${rows} × ${columns} pixels, as the model gets it`];
    found.header.views.push(this.filled("input", () => ({ box: box(preprocess, this.height, this.width), captions })));
    return found.file(input.image, this.small).file(input.seen, seen);
  }

  // --- evidence by removal -------------------------------------------------------------------------------------------

  // logits with only some patches kept (bytes [n]); the others show another image's patches, or lose their tokens
  ask(kept, hidden) {
    const { network, gone } = this, d = network.config.width, n = network.patches;
    const patches = this.patches.slice();
    for (let i = 0; i < n; i++) if (!kept[i]) patches.set(hidden.subarray(i * d, (i + 1) * d), i * d);
    return network.run(network.assemble(patches), { off: this.off, gone }).logits;
  }

  async *evidence(part) {
    const { network, weights, constants } = this, { grid, patches: n } = network, size = network.config.size, c = network.config.channels;
    const wanted = this.has("removal") || this.has("evidence");
    if (!wanted && !this.has("pruned-gradients")) return;
    const priors = network.parts(this.found, this.classes, this.gone);
    const [pruned] = this.has("pruned-gradients")?.results ?? [];
    if (pruned) yield new Part({ views: [this.filled("pruned-gradients", () => ({ names: { class: [this.label(this.target)] } }))] }).add(pruned.array, Float32Array.from(priors[0]), [1, n]);
    if (!wanted) return;
    const soft = network.embed(blurred(this.x, c, size, grid)), { data } = weights.array("masks"), passes = data.length / n;
    const masks = count(passes).map((i) => data.subarray(i * n, (i + 1) * n)), scores = this.classes.map(() => new Float64Array(passes));
    for (let i = 0; i < passes; i++) {
      await this.check("Removal of patches", i, passes);
      const logits = this.ask(masks[i], soft);
      this.classes.forEach((index, k) => { scores[k][i] = logOdds(logits, index); });
    }
    this.fitting ??= new Contributions(grid, constants);
    const found = [];
    for (const [k, prior] of priors.entries()) {
      await this.check("Removal of patches", passes, passes);
      found.push(this.fitting.fit(masks, scores[k], prior));
    }
    const joined = (name) => Float32Array.from(found.flatMap((each) => [...each[name]])), names = { class: this.classes.map((i) => this.label(i)) };
    const stable = reliability(found[0]) >= STABLE;
    const view = this.filled("removal", (result) => ({ names, title: result.title.replace(/ \(\d+ passes(, ranking stable)?\)/, ` (${passes} passes${stable ? ", ranking stable" : ""})`) }));
    const [map, error] = this.has("removal").results;
    yield new Part({ views: [view] }).add(map.array, joined("map"), [found.length, n]).add(error.array, joined("error"), [found.length, n]);
    if (this.has("evidence")) yield* this.test(found[0].map);
  }

  // hide the patches that a map marks, or show them alone, and compare with patches chosen without it (views/evidence.py)
  async *test(map) {
    const { network, weights, constants, target } = this, { patches: n } = network, c = network.config.channels, d = network.config.width;
    const values = Float64Array.from(map);
    for (const patch of this.artifacts.patches) values[patch] = -Infinity; // the page does not colour them: they are the last to be hidden
    const order = ranked(values), counts = [...new Set(constants.shares.map((share) => even(share * n)))].sort((a, b) => a - b);
    const plain = new Float32Array(this.x.length), area = this.x.length / c;
    for (let colour = 0; colour < c; colour++) {
      let sum = 0;
      for (let i = 0; i < area; i++) sum += this.x[colour * area + i];
      plain.fill(sum / area, colour * area, (colour + 1) * area);
    }
    const mean = network.embed(plain), { data } = weights.array("rivals"), draws = data.length / n;
    const total = 2 * counts.length - 2 + draws;
    let done = 0;
    const asked = async (chosen, hide) => {
      await this.check("Test of the map", done++, total);
      const kept = new Uint8Array(n).fill(hide ? 1 : 0);
      for (const patch of chosen) kept[patch] = hide ? 0 : 1;
      return softmax(this.ask(kept, mean));
    };
    const hidden = [], alone = [];
    for (const amount of counts) hidden.push(await asked(order.slice(0, amount), true));
    for (const amount of counts) alone.push(amount === 0 ? hidden.at(-1) : amount === n ? hidden[0] : await asked(order.slice(0, amount), false));
    const own = hidden.map((shares) => shares[target]), chosen = telling(own, counts, constants);
    const left = [];
    for (let i = 0; i < draws; i++) left.push((await asked(data.subarray(i * n, i * n + counts[chosen]), true))[target]);
    const random = left.slice(0, -1).reduce((a, b) => a + b, 0) / (draws - 1), centre = left.at(-1);
    const answers = [...new Set([target, ...this.order.slice(0, constants.answers)])];
    const best = [hidden, alone].map((lists) => lists.map((shares) => { const at = shares.indexOf(Math.max(...shares)); return [this.label(at), shares[at]]; }));
    const pixels = this.seen.length / (this.network.preprocess.mean.length), colour = count(3).map((k) => { let sum = 0; for (let i = 0; i < pixels; i++) sum += this.seen[c * i + (c === 3 ? k : 0)]; return Math.round(sum / pixels); });
    const [result] = this.has("evidence").results, rows = (lists) => Float32Array.from(lists.flatMap((shares) => answers.map((index) => shares[index])));
    const view = this.filled("evidence", () => ({ counts, best: [best], names: { class: [this.label(target)] }, answers, labels: answers.map((i) => this.label(i)), chosen: [chosen], random: [random], centre: [centre], passed: [own[chosen] < Math.min(...left) - constants.margin * own[0]], colour }));
    yield new Part({ views: [view] }).add(result.order, Int32Array.from(order), [1, n]).add(result.hidden, rows(hidden), [1, counts.length, answers.length]).add(result.alone, rows(alone), [1, counts.length, answers.length]);
  }

  // --- heads switched off --------------------------------------------------------------------------------------------

  async *ablation() {
    if (!this.has("ablation")) return;
    const { network, found, target, gone } = this, { depth, heads, width: d } = network.config, t = network.tokens, base = found.logits[target];
    const effect = new Float32Array(depth * heads);
    for (let block = 0; block < depth; block++) for (let head = 0; head < heads; head++) {
      await this.check("Heads switched off", block * heads + head, depth * heads);
      const input = block ? found.outputs.slice((block - 1) * t * d, block * t * d) : this.tokens;
      effect[block * heads + head] = network.run(input, { off: new Set([...this.off, `${block}.${head}`]), gone, from: block }).logits[target] - base;
    }
    const order = ranked(effect.map(Math.abs)).slice(0, RANKED), positions = order.map((i) => [Math.floor(i / heads), i % heads]);
    const title = (text) => text.replace(this.templateTarget, () => this.label(target));
    const changes = (result) => (result.kind === "bars" ? { title: title(result.title), names: positions.map(([block, head]) => `block ${block}, head ${head}`), values: order.map((i) => effect[i]), positions } : { title: title(result.title) });
    yield new Part({ views: [this.filled("ablation", changes)] }).add(this.has("ablation").results.find((result) => result.kind === "matrix").array, effect, [depth, heads]);
  }
}

// the share of a removal map's variance that is not error
function reliability({ map, error }) {
  const mean = map.reduce((a, b) => a + b, 0) / map.length, variance = map.reduce((total, value) => total + (value - mean) ** 2, 0) / map.length;
  return variance > 0 ? variance / (variance + error.reduce((total, value) => total + value ** 2, 0) / map.length) : 0;
}

// half to even, as Python rounds
function even(value) {
  const down = Math.floor(value);
  return value - down === 0.5 ? down + (down % 2) : Math.round(value);
}

// the step that tells most: where the class is lost, or a quarter of the patches
function telling(line, counts, { lost, largest, plain }) {
  const patches = counts.at(-1), step = counts.findIndex((amount, i) => amount <= largest * patches && line[i] < lost * line[0]);
  if (step >= 0) return step;
  return count(counts.length).slice(1).reduce((best, i) => (Math.abs(counts[i] - plain * patches) < Math.abs(counts[best] - plain * patches) ? i : best), 1);
}

// the image as it came, small
async function thumbnail(bitmap) {
  const scale = Math.min(1, LARGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = new OffscreenCanvas(Math.max(1, Math.round(bitmap.width * scale)), Math.max(1, Math.round(bitmap.height * scale)));
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Uint8Array(await (await canvas.convertToBlob({ type: "image/jpeg", quality: 0.88 })).arrayBuffer());
}
