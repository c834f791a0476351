// The explorer: images come from the user, payloads from the server. One viewer, or two in step on the same image.

import { make } from "./dom.js";
import { address, ask, parts } from "./server.js";
import { DEFAULTS, State } from "./state.js";
import { Viewer } from "./viewer.js";

const MOST = 20 * 2 ** 20;
const POLL = 500; // milliseconds between two questions how far the server is
const client = [...crypto.getRandomValues(new Uint32Array(4))].map((word) => word.toString(16)).join(""); // randomUUID wants https
const at = (id) => document.getElementById(id);
const state = new State(DEFAULTS);
const slots = []; // the places of one or two models
let image = null; // { name, blob }
let asked = null; // an AbortController for the newest question

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

// The place of one model: the viewer of what was asked last; while the next answer is worked out, the old one is dimmed
class Slot {
  constructor(index) {
    Object.assign(this, { index, viewer: null, element: make("section", { class: "slot", hidden: true }) });
    at("viewer").append(this.element);
  }

  get client() {
    return `${client}-${this.index}`;
  }

  // the new image at once, over what was there; the browser has it already
  preview({ name, blob }) {
    const url = URL.createObjectURL(blob);
    const picture = make("img", { class: "coming", src: url, alt: name });
    picture.addEventListener("load", () => URL.revokeObjectURL(url));
    this.element.querySelector(".coming")?.remove();
    this.element.hidden = false;
    this.element.classList.add("waiting");
    this.element.setAttribute("aria-busy", "true");
    if (!this.viewer) this.element.replaceChildren(make("article", { class: "viewer" }, make("div", { class: "head" }, make("h2", { class: "answer-line" }, make("span", {}, "…")), make("p", { class: "sub" }, name)), make("div", { class: "left" }, make("div", { class: "stage empty" }))));
    this.element.querySelector(".stage").append(picture);
  }

  // ask for an image's page, and show each part as it comes
  async look(model, { name, blob }, signal, several) {
    const response = await ask(address("/api/explain", { model, name, client: this.client, stages: true }), blob, signal);
    let viewer = null;
    for await (const part of parts(response)) {
      if (signal.aborted) return;
      if (viewer) viewer.receive(part);
      else viewer = await this.open(part, model, blob, several);
    }
    this.element.removeAttribute("aria-busy");
  }

  // the first part: the image and its answers
  async open(payload, model, blob, several) {
    const { header } = payload;
    header.model.name = model;
    for (const view of header.views) view.pending = true;
    const { view, block, head, query, class: target } = header.start;
    if (!globalThis.vitreous) state.start({ view, block: block ?? 0, head: head ?? "mean", query, class: target });
    const source = { ablate: async (off) => (await ask(address("/api/ablate", { model, off: off.join(","), client: this.client }), blob)).json() };
    const viewer = await Viewer.create(payload, state, source);
    this.viewer?.destroy();
    this.viewer = viewer;
    this.element.classList.remove("waiting");
    this.element.setAttribute("aria-label", model);
    this.element.replaceChildren(...(several ? [make("h2", { class: "quiet" }, model)] : []), viewer.element);
    const viewers = slots.map((slot) => slot.viewer).filter(Boolean);
    globalThis.vitreous = { viewer: viewers[0], viewers, state };
    return viewer;
  }

  clear() {
    this.viewer?.destroy();
    this.viewer = null;
    this.element.hidden = true;
    this.element.replaceChildren();
  }
}

async function look() {
  if (!image) return;
  asked?.abort(); // nobody waits for what was asked before
  const mine = (asked = new AbortController());
  const names = [at("first").value, at("second").value].filter(Boolean);
  const { name } = image;
  let over = false;
  tell(`Looking at ${name} …`);
  follow(name, names, () => over || asked !== mine);
  document.documentElement.removeAttribute("data-ready");
  at("viewer").classList.toggle("two", names.length > 1);
  slots.forEach((slot, i) => (names[i] ? slot.preview(image) : slot.clear()));
  try {
    await Promise.all(names.map((model, i) => slots[i].look(model, image, mine.signal, names.length > 1)));
    if (asked !== mine) return;
    tell("");
    document.documentElement.dataset.ready = String(names.length);
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
  at("viewer").replaceChildren();
  slots.push(new Slot(0), new Slot(1));
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
