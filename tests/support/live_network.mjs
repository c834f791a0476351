// Run networks of live pages in Node: `node live_network.mjs FOLDER`, where FOLDER holds the page's scripts as modules, and
// `cases.json` lists the cases. Each names a payload of `pack_network` and what to compute; results are written beside it.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(join(folder, name)));
const [{ Kernels }, { Network }, { Payload }] = await Promise.all(["kernels.js", "network.js", "payload.js"].map(load));
const { view, normalise } = await load("pixels.js");
const { Contributions } = await load("contributions.js");
const { blurred } = await load("inspection.js");
const bytes = (name) => { const { buffer, byteOffset, length } = readFileSync(join(folder, name)); return buffer.slice(byteOffset, byteOffset + length); };
const write = (name, values) => writeFileSync(join(folder, name), new Uint8Array(Float32Array.from(values).buffer));

const TASKS = {
  async network({ name, plain, off, gone, classes }) {
    const weights = new Payload(bytes(`${name}.bin`)), kernels = await Kernels.create(plain ? null : weights.bytes("kernels"));
    if (kernels.plain !== plain) throw new Error("kernels.wasm does not start");
    const network = new Network(kernels, weights), tokens = network.assemble(network.embed(new Float32Array(bytes(`${name}.x`))));
    const changes = { off: new Set(off), gone: new Set(gone) };
    const found = network.run(tokens, { keep: true }), changed = network.run(tokens, { keep: true, ...changes });
    changed.off = changes.off;
    write(`${name}.blocked`, network.run(tokens, { off: new Set(["1"]) }).logits);
    const short = network.run(tokens), parts = network.parts(found, classes), without = network.parts(changed, classes, changes.gone);
    for (const [kind, values] of Object.entries({ logits: found.logits, short: short.logits, attention: found.attention, outputs: found.outputs, changed: changed.logits, "changed-attention": changed.attention })) write(`${name}.${kind}`, values);
    write(`${name}.parts`, parts.flatMap((part) => [...part]));
    write(`${name}.changed-parts`, without.flatMap((part) => [...part]));
  },
  async pixels({ name, preprocess, height, width }) {
    const raw = new Uint8Array(bytes(`${name}.raw`)), seen = view(preprocess, height, width, 3, (top, bottom) => raw.subarray(top * width * 3, bottom * width * 3));
    write(`${name}.seen`, seen);
    write(`${name}.normal`, normalise(preprocess, seen));
  },
  async contributions({ name, grid, masks, scores, prior, constants }) {
    const { map, error } = new Contributions(grid, constants).fit(masks.map((mask) => Uint8Array.from(mask)), Float64Array.from(scores), Float64Array.from(prior));
    write(`${name}.map`, map);
    write(`${name}.error`, error);
  },
  async blur({ name, channels, size, grid }) {
    write(`${name}.soft`, blurred(new Float32Array(bytes(`${name}.x`)), channels, size, grid));
  },
};

for (const { task, ...values } of JSON.parse(readFileSync(join(folder, "cases.json")))) await TASKS[task](values);
