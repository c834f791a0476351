// The story: eight steps of the image through the model, each with its drawing. The drawings are live: queries and keys are in
// the payload, and scores and attention of the patch under the pointer are computed here.

import { crop } from "./architecture.js";
import { scale } from "./charts.js";
import { robust } from "./colours.js";
import { make, number, percent } from "./dom.js";
import { slice } from "./payload.js";
import { fill, overlay } from "./stage.js";

// Numbers as a row of cells, pink above zero and blue below
function strip(label) {
  const canvas = make("canvas", { class: "strip", "aria-hidden": "true", height: 1 });
  const element = make("div", { class: "strip-line" }, make("span", {}, label), canvas);
  return { element, draw(values, peak) { canvas.width = values.length; fill(canvas, values, { kind: "tints", peak }); } };
}

export class Story {
  constructor(viewer, result, kinds) {
    Object.assign(this, { viewer, result, kinds });
    this.tokens = viewer.tokens;
    this.heading = make("h3");
    this.body = make("div", { class: "story-body" });
    const go = (by) => viewer.state.set({ step: Math.max(0, Math.min(result.steps.length - 1, (viewer.state.values.step ?? 0) + by)) });
    this.back = make("button", { class: "chip", onclick: () => go(-1) }, "Back");
    this.next = make("button", { class: "chip", onclick: () => go(1) }, "Next");
    this.element = make("div", { class: "story" }, make("div", { class: "story-head" }, this.heading, this.back, this.next), this.body);
    this.at = null;
  }

  find(kind, test = () => true) {
    return this.viewer.header.views.flatMap((view) => view.results).find((each) => each.kind === kind && test(each));
  }

  // the patch that the story follows: the one pointed at, or the strongest evidence, or the middle
  patch(values) {
    const { viewer } = this;
    const pointed = viewer.pointed(values);
    if (pointed !== null && pointed >= viewer.prefix) return pointed - viewer.prefix;
    if (this.strongest === undefined) {
      const removal = this.find("removal");
      this.strongest = removal ? viewer.payload.array(removal.order).data[0] : Math.floor(viewer.rows / 2) * viewer.columns + Math.floor(viewer.columns / 2);
    }
    return this.strongest;
  }

  // q · k / √k of one token with all: [tokens]
  scores(token) {
    const { payload } = this.viewer;
    const width = payload.array(this.result.q).shape[1];
    const q = slice(payload, this.result.q, token);
    this.keys ??= [...Array(this.tokens).keys()].map((i) => slice(payload, this.result.k, i));
    return Float32Array.from(this.keys, (k) => k.reduce((sum, value, i) => sum + value * q[i], 0) / Math.sqrt(width));
  }

  // what a step lays over the image, or null
  overlay(values) {
    const { drawing } = this.result.steps[this.step(values)];
    const { prefix } = this.viewer;
    const patch = this.patch(values);
    const query = prefix + patch;
    if (drawing === "score") {
      const heat = this.scores(query).subarray(prefix);
      return { values: heat, kind: "tint", peak: robust(heat), low: Math.min(...heat), query, label: "score" }; // a softmax sees differences alone
    }
    if (drawing === "attention") {
      const heat = softmax(this.scores(query)).subarray(prefix);
      return { values: heat, kind: "tint", peak: robust(heat), low: 0, query, label: "attention" };
    }
    if (drawing === "mlp") {
      const heat = slice(this.viewer.payload, this.result.added, 1);
      return { values: heat, kind: "tint", peak: robust(heat), low: Math.min(...heat), query, label: "added by the MLP" };
    }
    return { values: null, query: ["patches", "embedding"].includes(drawing) ? query : null };
  }

  // what a saved image calls itself
  title() {
    return `Step ${this.at}: ${this.result.steps[this.at].title}`;
  }

  step(values) {
    return Math.min(values.step ?? 0, this.result.steps.length - 1);
  }

  update(values) {
    const at = this.step(values), step = this.result.steps[at];
    if (at !== this.at) {
      this.at = at;
      this.heading.textContent = `${at} ${step.title}`;
      this.back.disabled = at === 0;
      this.next.disabled = at === this.result.steps.length - 1;
      this.drawing = this[step.drawing]();
      const shapes = step.shapes.map(([name, shape]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, shape)));
      this.body.replaceChildren(make("p", {}, step.text), make("p", { class: "equation" }, step.equation), ...[this.drawing.element].flat().filter(Boolean), make("table", { class: "plain" }, shapes));
    }
    this.drawing.update?.(values);
  }

  // --- the drawings --------------------------------------------------------------------------------------------------

  image() {
    const found = this.find("crop");
    return found ? crop(this.viewer, found) : { element: null };
  }

  patches() {
    const found = this.find("tiles", (each) => each.grid);
    return found ? this.kinds.tiles(this.viewer, found) : { element: null };
  }

  embedding() {
    const { viewer, result } = this;
    const pixels = make("canvas", { class: "pixels", width: 96, height: 96, role: "img", "aria-label": "The patch" });
    const parts = [strip("patch × matrix"), ...(result.positions ? [strip("+ position"), strip("= token")] : [])];
    const said = make("p", { class: "key" });
    return {
      element: [said, make("div", { class: "embedding" }, pixels, make("div", { class: "strips" }, parts.map((part) => part.element)))],
      update: (values) => {
        const patch = this.patch(values);
        const [row, column] = [Math.floor(patch / viewer.columns), patch % viewer.columns];
        const { image, covered } = viewer, [wide, high] = [(covered[1] * image.width) / viewer.columns, (covered[0] * image.height) / viewer.rows];
        const context = pixels.getContext("2d");
        context.imageSmoothingEnabled = false;
        context.drawImage(image, column * wide, row * high, wide, high, 0, 0, 96, 96);
        const start = slice(viewer.payload, result.embedding, patch);
        const added = result.positions ? slice(viewer.payload, result.positions, patch) : null;
        const peak = robust(start);
        parts[0].draw(start, peak);
        if (added) {
          parts[1].draw(added, peak);
          parts[2].draw(start.map((value, i) => value + added[i]), peak);
        }
        said.textContent = `The ${viewer.tokenName(viewer.prefix + patch)}: the first ${start.length} numbers of its token, pink above zero, blue below.`;
      },
    };
  }

  score() {
    const { viewer, result } = this;
    const parts = [strip("query"), strip("best key")];
    const said = make("p", { class: "key" });
    return {
      element: [said, make("div", { class: "strips" }, parts.map((part) => part.element))],
      update: (values) => {
        const query = viewer.prefix + this.patch(values);
        const scores = this.scores(query);
        const best = scores.reduce((most, value, i) => (value > scores[most] ? i : most), 0);
        const [q, k] = [slice(viewer.payload, result.q, query), this.keys[best]];
        const peak = Math.max(robust(q), robust(k));
        parts[0].draw(q, peak);
        parts[1].draw(k, peak);
        said.textContent = `The ${viewer.tokenName(query)} scores highest with the ${viewer.tokenName(best)}: ${number(scores[best])}. All scores are on the image.`;
      },
    };
  }

  attention() {
    const { viewer } = this;
    const said = make("p", { class: "key" }), list = make("ol", { class: "answers" });
    return {
      element: [said, list],
      update: (values) => {
        const query = viewer.prefix + this.patch(values);
        const shares = softmax(this.scores(query));
        const order = [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, 5);
        said.textContent = `Of its attention, the ${viewer.tokenName(query)} gives most to:`;
        list.replaceChildren(...order.map((token) => make("li", {}, make("div", { class: "answer" }, make("span", { class: "name" }, token === query ? "itself" : viewer.tokenName(token).replace("patch in ", "")), make("span", { class: "track", "aria-hidden": "true" }, make("span", { class: "bar", style: { width: `${100 * shares[token]}%` } })), make("span", { class: "value" }, percent(shares[token]))))));
      },
    };
  }

  mlp() {
    const { viewer, result } = this;
    const small = new OffscreenCanvas(viewer.columns, viewer.rows);
    const both = [0, 1].map((i) => slice(viewer.payload, result.added, i));
    const peak = Math.max(...both.map((values) => robust(values)));
    const tiles = both.map((values, i) => {
      const canvas = make("canvas", { class: "photo", width: 224, height: Math.round(224 * viewer.stage.ratio), role: "img", "aria-label": ["Length of what attention adds", "Length of what the MLP adds"][i] });
      overlay(canvas.getContext("2d"), { x: 0, y: 0, width: canvas.width, height: canvas.height }, viewer.image, small, { values, columns: viewer.columns, covered: viewer.covered, kind: "tint", peak, low: 0, opacity: 0.85 });
      return make("figure", {}, canvas, make("figcaption", {}, ["added by attention", "added by the MLP"][i]));
    });
    return { element: [make("div", { class: "crops" }, tiles), scale("tint", "0", `${number(peak)} or more: the length of what is added`)] };
  }

  blocks() {
    const found = this.find("steps");
    return found ? this.kinds.steps(this.viewer, found) : { element: null };
  }

  answer() {
    const found = this.find("bars", (each) => each.logits);
    return found ? this.kinds.bars(this.viewer, found) : { element: null };
  }
}

function softmax(scores) {
  const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const raised = scores.map((value) => Math.exp(value - most));
  const sum = raised.reduce((a, b) => a + b, 0);
  return raised.map((value) => value / sum);
}
