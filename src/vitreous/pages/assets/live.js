// What the explorer asks of its server, answered inside a live page: a worker holds the network (worker.js), and the report's own
// payloads answer for its images as they are. The page's import map gives this module the name of server.js.

import { Payload, fromText } from "./payload.js";

const $ = (selector) => document.querySelector(selector);
const reports = [...document.querySelectorAll('script[type="application/vitreous"]')];
const samples = new Map(); // name → { blob, url, buffer } of an image of the report
const waiting = new Map(); // question → how its messages are taken
const images = new WeakMap(); // image → its number, by which the worker finds it again
let last = 0;

// --- the worker ------------------------------------------------------------------------------------------------------

const worker = new Worker(URL.createObjectURL(new Blob([$('script[type="text/vitreous-worker"]').textContent], { type: "text/javascript" })));
worker.onmessage = ({ data }) => waiting.get(data.id)?.(data);
worker.onerror = (event) => waiting.forEach((take) => take({ error: event.message || "the worker of this page does not start: a newer browser may help" }));

// one question and one answer
function call(message, transfer = []) {
  const id = ++last;
  return new Promise((done, fail) => {
    waiting.set(id, (data) => {
      if (data.error) fail(new Error(data.error));
      else if (data.done === true) done(data);
      else return;
      waiting.delete(id);
    });
    worker.postMessage({ ...message, id }, transfer);
  });
}

// the first report decides the words; weights are decoded by the worker, once everything is read
const first = fromText(reports[0].textContent);
const opened = (async () => {
  const header = words((await first).header), { network: address } = $("#drop").dataset, plain = new URLSearchParams(location.search).has("plain");
  if (address) {
    const bytes = await load(address);
    return call({ kind: "open", bytes: bytes.buffer, header, plain }, [bytes.buffer]);
  }
  if (document.readyState === "loading") await new Promise((done) => addEventListener("DOMContentLoaded", done, { once: true }));
  const element = $('script[type="application/vitreous-network"]'), text = element.textContent;
  element.remove(); // the page's own copy is not needed any more
  return call({ kind: "open", text, header, plain });
})();
opened.then(({ plain }) => {
  document.documentElement.dataset.network = plain ? "plain" : "wasm";
  if (plain) $("#live-note").textContent += " This browser has no WebAssembly with SIMD: answers take longer.";
}, () => {});

// the report's header with the views that other images can have
function words(header) {
  const { MODEL, LIVE } = lists();
  return { ...header, views: header.views.filter(({ name }) => MODEL.has(name) || LIVE.has(name)) };
}

// weights beside the page, with how much of them is here
async function load(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`the weights cannot be read (${address}: ${response.status}): put all files of this folder on the web server`);
  const total = Number(response.headers.get("X-Length") ?? $("#drop").dataset.bytes), parts = [], reader = response.body.getReader();
  let length = 0;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    parts.push(value);
    length += value.length;
    ring(length / total, `${(length / 1e6).toFixed(0)} of ${(total / 1e6).toFixed(0)} MB of weights`);
  }
  ring(null);
  const bytes = new Uint8Array(length);
  parts.reduce((at, part) => { bytes.set(part, at); return at + part.length; }, 0);
  return bytes;
}

// how far something is, as a ring; null when it is over
function ring(share, text = "") {
  const element = $("#ring");
  element.hidden = share === null;
  element.style.setProperty("--share", share ?? 0);
  element.setAttribute("aria-valuenow", Math.round(100 * (share ?? 0)));
  element.setAttribute("aria-valuetext", text);
  element.nextElementSibling.textContent = text;
}

// the messages of one question, as they come
async function* stream(message, signal) {
  const id = ++last, come = [];
  let wake = () => {};
  waiting.set(id, (data) => {
    if (data.step) ring(data.done / data.of, `${data.step}: pass ${Math.min(data.done + 1, data.of)} of ${data.of}`);
    else if (data.step === undefined) come.push(data);
    wake();
  });
  const cancel = () => { worker.postMessage({ kind: "cancel", id }); come.push({ error: "a newer question took its place" }); wake(); };
  signal?.addEventListener("abort", cancel);
  try {
    worker.postMessage({ ...message, kind: "ask", id });
    for (;;) {
      while (!come.length) await new Promise((done) => { wake = done; });
      const data = come.shift();
      if (data.error) throw signal?.aborted ? new DOMException(data.error, "AbortError") : new Error(data.error);
      if (data.done === true) return;
      if (data.part) yield new Payload(data.part);
    }
  } finally {
    worker.postMessage({ kind: "cancel", id }); // nobody reads on
    signal?.removeEventListener("abort", cancel);
    waiting.delete(id);
    ring(null);
  }
}

// --- what a server would answer --------------------------------------------------------------------------------------

async function sample(script, index) {
  const payload = await (index ? fromText(script.textContent) : first);
  const blob = payload.file("seen", "image/png");
  let { name } = script.dataset;
  for (let copy = 2; samples.has(name); copy++) name = `${script.dataset.name} (${copy})`;
  samples.set(name, { blob, url: URL.createObjectURL(blob), buffer: payload.buffer });
  return name;
}

async function list() {
  const names = [];
  for (const [index, script] of reports.entries()) names.push(await sample(script, index));
  return names;
}

const json = (value) => ({ json: async () => value });

export async function ask(path, body = null, signal = null) {
  const url = new URL(path, "page:/"), values = url.searchParams;
  const [, name] = /^\/api\/samples\/(.+)$/.exec(url.pathname) ?? [];
  if (name) return { blob: async () => samples.get(decodeURIComponent(name)).blob };
  switch (url.pathname) {
    case "/api/samples": return json(await list());
    case "/api/models": {
      const payload = await first;
      return json([{ name: payload.header.model.name, classifier: true, classes: payload.array("probabilities").shape[0] }]);
    }
    case "/api/progress": return json({ doing: "" }); // the ring says it
    case "/api/explain": return explained(values, body, signal);
    default: throw new Error("this page asks nothing of any network: save the image and drop the file");
  }
}

const numbers = (text) => (text ? text.split(",").map(Number) : []);

async function* explained(values, blob, signal) {
  const own = [...samples.values()].find((each) => each.blob === blob) ?? null;
  const classes = numbers(values.get("classes")), off = values.get("off") ? values.get("off").split(",") : [], gone = numbers(values.get("gone"));
  const compare = values.has("compare"), changed = off.length + gone.length > 0;
  const report = own ? new Payload(own.buffer) : null;
  const held = report && !changed && classes.every((index) => report.header.classes.some((each) => each.index === index));
  if (held) {
    const { views } = report.header, results = views.map(({ name, results }) => ({ name, results }));
    yield report;
    yield reused(report, results, []);
    if (!compare) return;
  }
  await opened;
  if (!images.has(blob)) images.set(blob, ++last);
  const question = { blob, image: images.get(blob), name: values.get("name"), seen: own !== null, classes, off, gone, way: values.get("way") ?? "tokens", compare };
  let begun = held;
  for await (const part of stream(question, signal)) {
    if (held && !("joint/directions" in part.header.arrays)) continue; // the report has the rest
    yield part;
    if (held) return;
    if (!begun) yield* fixed(await first, own !== null);
    begun = true;
  }
}

// the views that are the same for every image; and no result for those of the report's own images that Python alone can compute
function* fixed({ buffer }, own) {
  const template = new Payload(buffer), { MODEL, LIVE } = lists();
  const model = template.header.views.filter(({ name }) => MODEL.has(name));
  yield reused(template, model, Object.keys(template.header.arrays));
  if (own) yield reused(template, template.header.views.filter(({ name }) => !MODEL.has(name) && !LIVE.has(name)).map(({ name }) => ({ name, results: [] })), []);
}

function lists() {
  const { model, live } = $("#drop").dataset;
  return { MODEL: new Set(model.split(" ")), LIVE: new Set(live.split(" ")) };
}

// a part that reads from a payload that is there already
function reused({ header, buffer, start }, views, names) {
  const wanted = new Set(names.filter((name) => views.some((view) => name === view.name || name.startsWith(`${view.name}/`) || name.startsWith(`${view.name}.`))));
  const arrays = Object.fromEntries(Object.entries(header.arrays).filter(([name]) => wanted.has(name)));
  return { header: { from: 0, arrays, files: {}, views }, buffer, start };
}

// a worker's answer is its parts already
export const parts = (found) => found;

export function address(path, values) {
  return `${path}?${new URLSearchParams(Object.entries(values).filter(([, value]) => value !== null && value !== ""))}`;
}

export const blocks = true;

export const together = true;

export const sampleAddress = (name) => samples.get(name).url;

// for tests and measurements: the network on what it gets
globalThis.vitreousNetwork = { opened, run: (question) => call({ kind: "run", ...question }) };
