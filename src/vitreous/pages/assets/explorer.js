// The explorer: images come from the user, payloads from the server. One viewer, or two in step on the same image.

import { make } from "./dom.js";
import { Payload } from "./payload.js";
import { DEFAULTS, State } from "./state.js";
import { Viewer } from "./viewer.js";

const MOST = 20 * 2 ** 20;
const POLL = 500; // milliseconds between two questions how far the server is
const client = [...crypto.getRandomValues(new Uint32Array(4))].map((word) => word.toString(16)).join(""); // randomUUID wants https
const at = (id) => document.getElementById(id);
const state = new State(DEFAULTS);
const viewers = [];
let image = null; // { name, blob }
let asked = null; // an AbortController for the newest question

async function ask(path, body = null, signal = null) {
  const response = await fetch(path, body ? { method: "POST", body, signal, headers: { "Content-Type": "application/octet-stream" } } : { signal });
  if (response.ok) return response;
  const text = await response.text();
  let said = text;
  try {
    said = JSON.parse(text).detail ?? text;
  } catch { /* not JSON: as it is */ }
  throw new Error(typeof said === "string" ? said : JSON.stringify(said));
}

function address(path, values) {
  return `${path}?${new URLSearchParams(values)}`;
}

// What is being done, for eye and ear; the seconds are for the eye alone, or they would be read aloud one by one
function tell(text, seconds = "", wrong = false) {
  at("status").classList.toggle("wrong", wrong);
  if (at("said").textContent !== text) at("said").textContent = text;
  at("seconds").textContent = seconds;
}

// Say how far the server is, until `finished()`: asked of it now and then, and only where an answer takes a while
async function follow(name, models, finished) {
  const begun = performance.now();
  const words = models.map(() => "");
  while (!finished()) {
    await new Promise((done) => setTimeout(done, POLL));
    if (finished()) return;
    await Promise.all(models.map(async (model, slot) => {
      try {
        const { before, doing } = await (await ask(address("/api/progress", { client: `${client}-${slot}` }))).json();
        words[slot] = before ? `waiting, ${before} before` : doing ?? "";
      } catch { /* the answer itself will tell what is wrong */ }
    }));
    if (finished()) return;
    const shown = words.map((text, slot) => (text && models.length > 1 ? `${models[slot]}: ${text}` : text)).filter(Boolean).join(" · ");
    tell(`Looking at ${name} … ${shown}`, ` ${((performance.now() - begun) / 1000).toFixed(0)} s`);
  }
}

async function look() {
  if (!image) return;
  asked?.abort(); // nobody waits for what was asked before
  const mine = (asked = new AbortController());
  const names = [at("first").value, at("second").value].filter(Boolean);
  let over = false;
  tell(`Looking at ${image.name} …`);
  follow(image.name, names, () => over || asked !== mine);
  document.documentElement.removeAttribute("data-ready");
  const { name, blob } = image;
  try {
    const found = await Promise.all(names.map(async (model, slot) => {
      const response = await ask(address("/api/explain", { model, name, client: `${client}-${slot}` }), blob, mine.signal);
      const payload = new Payload(await response.arrayBuffer());
      payload.header.model.name = model;
      const source = { ablate: async (off) => (await ask(address("/api/ablate", { model, off: off.join(","), client: `${client}-${slot}` }), blob)).json() };
      return { payload, source };
    }));
    if (asked !== mine) return;
    const { view, block, head, query, class: target } = found[0].payload.header.start;
    if (!viewers.length) state.start({ view, block: block ?? 0, head: head ?? "mean", query, class: target });
    viewers.splice(0).forEach((viewer) => viewer.destroy());
    at("viewer").replaceChildren();
    for (const { payload, source } of found) {
      const viewer = await Viewer.create(payload, state, source);
      viewers.push(viewer);
      at("viewer").append(found.length > 1 ? make("section", { "aria-label": payload.header.model.name }, make("h2", { class: "quiet" }, payload.header.model.name), viewer.element) : viewer.element);
    }
    at("viewer").classList.toggle("two", found.length > 1);
    tell("");
    globalThis.vitreous = { viewer: viewers[0], viewers, state };
    document.documentElement.dataset.ready = String(found.length);
  } catch (error) {
    if (asked === mine) tell(`${name}: ${error.message}`, "", true);
  } finally {
    over = true;
  }
}

function take(blob, name) {
  if (!blob) return;
  if (blob.size > MOST) {
    tell(`${name} has ${(blob.size / 2 ** 20).toFixed(0)} MB: 20 are the most, make it smaller first`, "", true);
    return;
  }
  image = { blob, name };
  state.set({ query: null, hover: null, class: null });
  look();
}

async function sample(name) {
  take(await (await ask(`/api/samples/${encodeURIComponent(name)}`)).blob(), name);
}

async function start() {
  state.set(state.read(), false);
  const [models, samples] = await Promise.all(["/api/models", "/api/samples"].map(async (path) => (await ask(path)).json()));
  for (const { name } of models) {
    at("first").append(make("option", { value: name }, name));
    at("second").append(make("option", { value: name }, name));
  }
  at("samples").replaceChildren(...samples.map((name) => make("button", { class: "chip", onclick: () => sample(name) }, name)));
  at("first").addEventListener("change", look);
  at("second").addEventListener("change", look);
  at("file").addEventListener("change", () => take(at("file").files[0], at("file").files[0]?.name));
  addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files].find((each) => each.type.startsWith("image/"));
    if (file) take(file, file.name || "pasted image");
  });
  for (const kind of ["dragenter", "dragover"]) addEventListener(kind, (event) => { event.preventDefault(); at("drop").classList.add("over"); });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) at("drop").classList.remove("over"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    at("drop").classList.remove("over");
    const file = event.dataTransfer.files[0];
    if (file) take(file, file.name);
  });
  if (samples.length) await sample(samples[0]);
}

start().catch((error) => tell(error.message, "", true));
