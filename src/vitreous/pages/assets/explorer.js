// The explorer: images come from the user, payloads from the server. One viewer, or two in step: two models, or two images.

import { make } from "./dom.js";
import { Images } from "./images.js";
import { address, ask, blocks, parts, together } from "./server.js";
import { DEFAULTS, OwnClass, State } from "./state.js";
import { Viewer } from "./viewer.js";

const POLL = 500; // milliseconds between two questions how far the server is
const client = [...crypto.getRandomValues(new Uint32Array(4))].map((word) => word.toString(16)).join(""); // randomUUID wants https
const at = (id) => document.getElementById(id);
const state = new State({ ...DEFAULTS, sample: null, image: null, model: null, beside: "", sentence: "", pixel: "" }, ["view", "class", "sample", "image", "model", "beside", "sentence", "pixel"]);
const slots = []; // the slots of one or two viewers
const OTHER = "image:"; // what stands beside is a model, or after this an image
let images = null; // where images come from
let models = []; // what the server says of each
let image = null; // { name, blob }: the one that is looked at
let second = null; // the image beside it, where there is one
let shown = {}; // what of the state the page shows
let asked = null; // an AbortController for the newest question

// What is being done, for eye and ear; the seconds are for the eye alone, or they would be read aloud one by one
function tell(text, seconds = "", wrong = false) {
  at("status").classList.toggle("wrong", wrong);
  if (at("said").textContent !== text) at("said").textContent = text;
  at("seconds").textContent = seconds;
}

// Say how far the server is, until `finished()`: asked of it now and then, and only where an answer takes a while
async function follow(name, labels, finished) {
  const begun = performance.now();
  const words = labels.map(() => "");
  while (!finished()) {
    await new Promise((done) => setTimeout(done, POLL));
    if (finished()) return;
    await Promise.all(labels.map(async (label, slot) => {
      try {
        const { before, doing } = await (await ask(address("/api/progress", { client: `${client}-${slot}` }))).json();
        words[slot] = before ? `waiting, ${before} before` : doing ?? "";
      } catch { /* the answer itself will tell what is wrong */ }
    }));
    if (finished()) return;
    const shown = words.map((text, slot) => (text && labels.length > 1 ? `${labels[slot]}: ${text}` : text)).filter(Boolean).join(" · ");
    tell(`Looking at ${name} … ${shown}`, ` ${((performance.now() - begun) / 1000).toFixed(0)} s`);
  }
}

// The slot of one model and one image: the viewer of what was asked last; while the next answer is worked out, the old one is dimmed
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
    const image = make("img", { class: "coming", src: url, alt: name });
    image.addEventListener("load", () => URL.revokeObjectURL(url));
    this.element.querySelector(".coming")?.remove();
    this.element.hidden = false;
    this.element.classList.add("waiting");
    this.element.setAttribute("aria-busy", "true");
    if (!this.viewer) this.element.replaceChildren(make("article", { class: "viewer" }, make("div", { class: "head" }, make("h2", { class: "answer-line" }, make("span", {}, "…")), make("p", { class: "sub" }, name)), make("div", { class: "left" }, make("div", { class: "stage empty" }))));
    this.element.querySelector(".stage").append(image);
  }

  // the class that is asked for, where this model has it: another model's classes may be others
  target(model) {
    const [own, first] = [model, shown.model].map((name) => models.find((each) => each.name === name));
    const { class: asked, sentence } = state.values;
    if (sentence && (own.sentences || first.sentences)) return model === shown.model ? asked : null; // counted among the sentences
    if (!alike(own, first)) return this.own?.model === model ? this.own.index : null;
    return asked !== null && own.classifier && asked < own.classes ? asked : null;
  }

  // another label, number or class of this slot's model alone
  async choose(index) {
    const { model } = this.question;
    this.own = { model, index };
    if (this.viewer.header.classes.some((each) => each.index === index)) return;
    this.changing?.abort();
    this.choosing?.abort();
    this.choosing = new AbortController();
    document.documentElement.removeAttribute("data-ready");
    this.preview(this.question);
    this.loading = this.receive({ classes: index }, this.choosing.signal, this.label);
    try {
      await this.loading;
      document.documentElement.dataset.ready = String(slots.filter((slot) => slot.viewer).length);
    } catch (error) {
      if (error.name !== "AbortError") tell(`${this.question.name}: ${error.message}`, "", true);
    }
  }

  // ask for an image's page, and show each part as it comes
  look(model, { name, blob }, signal, label) {
    const { sentences, task } = models.find((each) => each.name === model);
    this.label = label;
    this.question = { model, name, blob, compare: second ? true : null, sentence: sentences ? state.values.sentence : "", pixel: task === "segment" ? state.values.pixel : "" };
    this.loading = this.receive({ classes: this.target(model) }, signal, label);
    return this.loading;
  }

  async receive(values, signal, label) {
    let viewer = null;
    try {
      for await (const part of this.ask(values, signal)) {
        if (signal.aborted) return;
        if (viewer?.before) viewer.edits.later(part); // what is shown is changed already
        else if (viewer) viewer.receive(part);
        else viewer = await this.open(part, label);
      }
    } catch (error) {
      if (!signal.aborted) viewer?.fail(error.message);
      throw error;
    } finally {
      if (!signal.aborted) this.element.removeAttribute("aria-busy");
    }
  }

  async *ask(values, signal) {
    const { model, name, blob, compare, sentence, pixel } = this.question;
    yield* parts(await ask(address("/api/explain", { model, name, compare, sentence, pixel, client: this.client, stages: true, ...values }), blob, signal));
  }

  // ask again without some heads or patches; only the newest question is answered
  ablate(values) {
    this.changing?.abort();
    this.changing = new AbortController();
    return this.ask(values, this.changing.signal);
  }

  // the first part: the image and its answers
  async open(payload, label) {
    const { header } = payload, { model } = this.question;
    header.model.name = model;
    for (const view of header.views) view.pending = true;
    const { view, block, head, query, class: target } = header.start;
    const shared = alike(...[model, shown.model].map((name) => models.find((each) => each.name === name)));
    if (!globalThis.vitreous) state.start({ view, block: block ?? 0, head: head ?? "mean", query, ...(shared ? { class: target } : {}) }); // either slot may come first
    const source = { ablate: (values) => this.ablate(values), stop: () => this.changing?.abort(), loaded: () => (together ? null : this.loading), explain: (index) => own.set({ class: index, pixel: "" }), pixel: (pixel) => own.set({ class: null, pixel, count: null }), sentence: sentenceOf(model), blocks };
    const own = shared ? state : new OwnClass(state, target, (index) => this.choose(index));
    const viewer = await Viewer.create(payload, own, source);
    this.viewer?.destroy();
    this.viewer = viewer;
    this.element.classList.remove("waiting");
    this.element.setAttribute("aria-label", label || model);
    this.element.replaceChildren(...(label ? [make("h2", { class: "quiet" }, label)] : []), viewer.element);
    const viewers = slots.map((slot) => slot.viewer).filter(Boolean);
    if (!viewers.includes(state.values.from)) state.set({ from: viewers[0] }); // the other shows what is like the patch pointed at in it
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

// whether two models are asked alike: what one gives at an index, the other gives there too
function alike(own, first) {
  return own === first || (own.task === first.task && own.classifier && own.classes === first.classes);
}

async function look() {
  if (!image) return;
  asked?.abort(); // nobody waits for what was asked before
  const mine = (asked = new AbortController());
  const pairs = [{ model: shown.model, image }];
  if (second) pairs.push({ model: shown.model, image: second });
  else if (shown.beside) pairs.push({ model: shown.beside, image });
  const labels = pairs.map((each) => (second ? each.image.name : each.model)), two = pairs.length > 1;
  slots.forEach((slot) => [slot.changing, slot.choosing].forEach((question) => question?.abort()));
  const { name } = image;
  let over = false;
  tell(`Looking at ${name} …`);
  follow(second ? `${name} and ${second.name}` : name, labels, () => over || asked !== mine);
  document.documentElement.removeAttribute("data-ready");
  at("viewer").classList.toggle("two", two);
  slots.forEach((slot, i) => (pairs[i] ? slot.preview(pairs[i].image) : slot.clear()));
  try {
    await Promise.all(pairs.map((each, i) => slots[i].look(each.model, each.image, mine.signal, two ? labels[i] : "")));
    if (asked !== mine) return;
    tell("");
    document.documentElement.dataset.ready = String(pairs.length);
  } catch (error) {
    if (asked === mine) tell(`${name}: ${error.message}`, "", true);
  } finally {
    over = true;
  }
}

// Show what the state says: another image, another model, a class whose evidence has not been asked for
async function showState(values) {
  const { sample, image: index, model, beside, sentence, pixel, class: asked } = values;
  at("first").value = model;
  at("second").value = beside;
  const other = sample !== shown.sample || index !== shown.image;
  const viewer = slots[0].viewer;
  const unheld = asked !== null && asked !== shown.class && viewer && !viewer.header.classes.some((each) => each.index === asked);
  if (!other && model === shown.model && beside === shown.beside && sentence === shown.sentence && pixel === shown.pixel && !unheld) return;
  shown = { sample, image: index, model, beside, sentence, pixel, class: asked };
  const mine = shown;
  images.mark(index ?? sample);
  if (other) slots.forEach((slot) => (slot.own = null)); // what was chosen of another image
  const found = await Promise.all([other ? images.get(index ?? sample) : image, beside.startsWith(OTHER) ? images.get(keyOf(beside)) : null]);
  if (shown !== mine) return;
  [image, second] = found;
  await look();
}

// how a sentence is asked for in the place of a class, where the model has a text tower: returns what is wrong with it
function sentenceOf(model) {
  const { sentences: longest } = models.find((each) => each.name === model);
  if (!longest) return null;
  return (sentence) => {
    const { length } = [...sentence];
    if (length > longest) return `A sentence has at most ${longest.toLocaleString("en")} characters, this one has ${length.toLocaleString("en")}.`;
    state.set({ sentence, class: sentence ? 0 : null, count: null, view: null });
    return "";
  };
}

// the key of the image that is beside: a sample's name, or the number of one of one's own
function keyOf(beside) {
  const key = beside.slice(OTHER.length);
  return /^\d+$/.test(key) ? Number(key) : key;
}

async function start() {
  at("viewer").replaceChildren();
  slots.push(new Slot(0), new Slot(1));
  const [known, samples] = await Promise.all(["/api/models", "/api/samples"].map(async (path) => (await ask(path)).json()));
  models = known;
  const several = models.length > 1, options = () => models.map(({ name }) => make("option", { value: name }, name));
  const others = make("optgroup", { label: "Another image" });
  at("first").append(...options());
  at("first").parentElement.hidden = !several; // nothing to choose
  at("second").append(...(several ? [make("optgroup", { label: "Another model" }, options())] : []), others);
  const fresh = { query: null, hover: null, class: null, count: null, pixel: "" };
  images = new Images(samples, {
    strip: at("samples"),
    choose: ({ sample = null, image: index = null }) => state.set({ sample, image: index, ...fresh }),
    tell: (text, wrong = false) => tell(text, "", wrong),
    changed: (buttons) => {
      others.replaceChildren(...[...buttons].map(([key, { title }]) => make("option", { value: `${OTHER}${key}` }, title)));
      at("second").value = state.values.beside;
    },
  });
  images.listen({ file: at("file"), drop: at("drop"), camera: at("camera") });
  at("first").addEventListener("change", () => {
    const [now, before] = [at("first").value, shown.model].map((name) => models.find((each) => each.name === name));
    state.set({ model: now.name, ...fresh, ...(now.task === before?.task ? {} : { view: null }) }); // what it opens with, such as its mask
  });
  at("second").addEventListener("change", () => state.set({ beside: at("second").value }));
  state.start({ sample: samples[0], model: models[0].name });
  state.watch((values) => showState(withKnown(values, samples)).catch((error) => tell(error.message, "", true)));
}

// An address may name what this explorer does not have: then its first image and model
function withKnown(values, samples) {
  const has = (name) => models.some((each) => each.name === name);
  const beside = values.beside.startsWith(OTHER) ? images.buttons.has(keyOf(values.beside)) : has(values.beside);
  return {
    ...values,
    sample: values.image !== null && images.own[values.image] ? null : samples.includes(values.sample) ? values.sample : samples[0],
    image: images.own[values.image] ? values.image : null,
    model: has(values.model) ? values.model : models[0].name,
    beside: beside ? values.beside : "",
  };
}

start().catch((error) => tell(error.message, "", true));
