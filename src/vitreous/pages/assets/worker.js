// The worker of a live page: it holds the network and answers questions about images, a part at a time, so that the page never
// waits. Between two passes it reads its messages: a newer question ends an older one, and a change goes before the whole.

import { Inspection, look } from "./inspection.js";
import { Kernels } from "./kernels.js";
import { Network } from "./network.js";
import { fromBytes, fromText } from "./payload.js";

let network = null, weights = null, template = null;
const looks = new Map(); // number of an image → what was read of it, the newest last
const KEPT = 4;
const open = new Map(); // questions that are still asked → whether they change something
const { port1: near, port2: far } = new MessageChannel();
const paused = [];
near.onmessage = () => paused.shift()();

// let messages in
function pause() {
  return new Promise((done) => {
    paused.push(done);
    far.postMessage(null);
  });
}

const TASKS = {
  // the weights, as text of the page or as gzipped bytes, and the report's header as the template of all words
  async open({ text, bytes, header, plain }) {
    weights = text ? await fromText(text) : await fromBytes(new Uint8Array(bytes));
    template = header;
    network = new Network(await Kernels.create(plain ? null : weights.bytes("kernels")), weights);
    weights.forget("matrices"); // the network has its own copy
    return { plain: network.kernels.plain, memory: network.kernels.buffer.byteLength };
  },

  async ask({ id, blob, image, name, seen, classes, off, gone, way, compare }) {
    const changed = off.length + gone.length > 0;
    open.set(id, changed);
    const check = async (step, done = 0, of = 0) => {
      postMessage({ id, step, done, of });
      do await pause(); while (!changed && open.has(id) && [...open.values()].includes(true)); // changes go first
      if (!open.has(id)) throw new Error("a newer question took its place");
    };
    const most = network.patches, patches = new Set(gone.filter((patch) => patch >= 0 && patch < most));
    if (way !== "blur" && patches.size === most) throw new Error(`all ${most} patches are to be removed: leave at least one`);
    const inspection = new Inspection(network, weights, template, check);
    let found = looks.get(image);
    if (!found) looks.set(image, (found = await look(blob, network.preprocess, seen)));
    if (looks.size > KEPT) looks.delete(looks.keys().next().value);
    inspection.take(found, way === "blur" ? patches : null);
    for await (const part of inspection.stages({ name, classes, off: new Set(off), gone: way === "blur" ? null : patches, compare })) {
      const { buffer } = part;
      postMessage({ id, part: buffer }, [buffer]);
      await check("");
    }
    return {};
  },

  // logits, and attention where it is asked for, of what the network gets: for tests and measurements
  async run({ x, keep = false, off = [], gone = null, times = 1 }) {
    const tokens = network.assemble(network.embed(x));
    const begun = performance.now();
    let found = null;
    for (let i = 0; i < times; i++) found = network.run(tokens, { keep, off: new Set(off), gone: gone ? new Set(gone) : null });
    return { logits: found.logits, attention: found.attention ?? null, took: (performance.now() - begun) / times, memory: network.kernels.buffer.byteLength };
  },
};

onmessage = async ({ data: { kind, ...question } }) => {
  const { id } = question;
  if (kind === "cancel") return void open.delete(id);
  try {
    postMessage({ id, done: true, ...(await TASKS[kind](question)) });
  } catch (error) {
    postMessage({ id, error: error.message });
  } finally {
    open.delete(id);
  }
};
