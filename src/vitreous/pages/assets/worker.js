// The worker of a live page: it holds the network and answers questions about images, a part at a time, so that the page never
// waits. Between two passes it reads its messages: a newer question ends an older one.

import { Inspection } from "./inspection.js";
import { Kernels } from "./kernels.js";
import { Network } from "./network.js";
import { fromBytes, fromText } from "./payload.js";

let network = null, weights = null, template = null;
const open = new Set(); // questions that are still asked
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
    return { plain: network.kernels.plain, memory: network.kernels.buffer.byteLength };
  },

  async ask({ id, blob, name, seen, classes, off, gone, way, compare }) {
    open.add(id);
    const check = async (step, done = 0, of = 0) => {
      postMessage({ id, step, done, of });
      await pause();
      if (!open.has(id)) throw new Error("a newer question took its place");
    };
    const most = network.patches, patches = new Set(gone.filter((patch) => patch >= 0 && patch < most));
    if (way !== "blur" && patches.size === most) throw new Error(`all ${most} patches are to be removed: leave at least one`);
    const inspection = new Inspection(network, weights, template, check);
    await inspection.look(blob, { seen, blur: way === "blur" ? patches : null });
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
