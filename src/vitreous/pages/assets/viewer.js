// One model and one image on the page: the image, the answer and its evidence (headline.js), and the views in their groups.
// Groups, views and all words come from the payload; `kinds.js` draws each kind of result.

import { amount, make, number, percent, quantity } from "./dom.js";
import { Edits } from "./edits.js";
import { Headline } from "./headline.js";
import { KINDS, controls, leftOut, legend, rangeOf, readMap } from "./kinds.js";
import { Stage, render } from "./stage.js";


let count = 0;
const STEP = 700; // milliseconds a block when playing
const switches = ({ kind, columns }) => kind === "matrix" && columns === "head"; // heads that can be switched off

export class Viewer {
  // `source.ablate` is null in a report; in the explorer it asks the server again, without some heads or patches
  static async create(payload, state, source) {
    const image = payload.header.files.image ? await createImageBitmap(payload.file("image")) : null;
    return new Viewer(payload, state, source, image);
  }

  constructor(payload, state, source, image) {
    Object.assign(this, { payload, state, source, image, header: payload.header });
    const { model, views } = this.header;
    const maps = this.maps;
    [this.rows, this.columns] = model.grid ?? maps[0]?.grid ?? [1, 1];
    this.covered = (image && model.covered?.map((side, i) => side / model.size[i])) ?? [1, 1]; // shares of the image that patches read
    this.prefix = model.prefix?.length ?? 0;
    this.tokens = this.prefix + this.rows * this.columns;
    this.depth = model.depth ?? 1;
    this.heads = model.heads ?? 1;
    this.hasStage = image !== null || maps.length > 0;
    this.id = ++count;
    this.before = null; // the answers before a change
    this.chips = new Map();
    this.groups = new Map(Object.keys(this.header.groups).map((group) => [group, views.filter((view) => view.group === group)]).filter(([, found]) => found.length));
    this.build();
    this.watcher = (values) => this.update(values);
    state.watch(this.watcher);
  }

  get maps() {
    return this.header.views.flatMap((view) => view.results).filter((result) => result.kind === "map");
  }

  // heads that are switched off
  get off() {
    return this.edits?.off ?? new Set();
  }

  get news() {
    return this.edits?.news ?? "";
  }

  get attention() {
    return this.maps.find((result) => result.axes.includes("block") && result.axes.includes("head")) ?? null;
  }

  // the first answer; of labels, numbers and masks the one that is asked about
  answerOf(predictions) {
    const { model, classes } = this.header;
    return (model.task ?? "classify") === "classify" ? predictions[0] : predictions.find((each) => each.index === classes[0].index);
  }

  // --- what comes later ----------------------------------------------------------------------------------------------

  // a part of the payload: the results of a view, or none where this model or image cannot give it
  receive(part) {
    this.payload.add(part);
    for (const { name, results } of part.header.views) {
      const view = this.header.views.find((each) => each.name === name);
      if (!view) continue; // gone since an earlier change
      const siblings = this.groups.get(view.group);
      Object.assign(view, { results, pending: false });
      if (!results.length) {
        this.header.views.splice(this.header.views.indexOf(view), 1);
        siblings.splice(siblings.indexOf(view), 1);
        this.chips.get(name)?.remove();
      } else this.chips.get(name)?.classList.remove("pending");
      this.buttons.get(view.group)?.classList.toggle("pending", siblings.some((each) => each.pending));
      if (view === this.view) this.view = null; // shown anew
      if (name === "evidence") this.proves();
    }
    this.tells();
    this.state.set({ tick: performance.now() });
  }

  // the steps of the story, once they have come
  tells() {
    const story = this.header.views.find((view) => view.name === "story");
    if (story?.results.length && this.story.childElementCount === 1) this.story.append(...this.steps(story));
  }

  // nothing more comes: say so where something was awaited
  fail(message) {
    this.failed = message;
    this.element.classList.add("failed");
    this.proves();
    this.view = null; // shown anew
    this.state.set({ tick: performance.now() });
  }

  // the headline once more: the evidence has come, or the answers have changed
  proves() {
    const { head, element } = this.headline;
    this.headline = new Headline(this);
    head.replaceWith(this.headline.head);
    element?.replaceWith(this.headline.element);
  }

  // --- what is chosen ------------------------------------------------------------------------------------------------

  // the token that is hovered or pinned, or null; beside a viewer with another grid, the token at the same position
  pointed(values) {
    const token = values.hover ?? values.query;
    if (token === null || token === undefined) return null;
    const other = values.from;
    if (!other || other === this || (other.rows === this.rows && other.columns === this.columns && other.prefix === this.prefix)) return token < this.tokens ? token : null;
    if (token < other.prefix) return Math.min(token, this.prefix - 1) >= 0 ? Math.min(token, this.prefix - 1) : null;
    const patch = token - other.prefix;
    const [down, across] = this.covered.map((share, i) => other.covered[i] / share);
    const row = Math.min(this.rows - 1, Math.floor(((Math.floor(patch / other.columns) + 0.5) / other.rows) * down * this.rows));
    const column = Math.min(this.columns - 1, Math.floor((((patch % other.columns) + 0.5) / other.columns) * across * this.columns));
    return this.prefix + row * this.columns + column;
  }

  // which of the explained classes is chosen
  classAt(values) {
    return Math.max(0, this.header.classes.findIndex((each) => each.index === values.class));
  }

  // the index along each axis of a result that the reader has chosen
  picked(result, values) {
    const found = { block: values.block, head: values.head, query: null, class: 0 };
    if (result.axes.includes("class")) found.class = Math.min(this.classAt(values), result.names.class.length - 1);
    if (result.axes.includes("query")) {
      const missing = this.prefix - (result.prefix ?? 0); // tokens that this result does not count
      const token = this.pointed(values);
      const start = missing ? result.at.query : this.header.model.readsMean ? null : 0;
      found.query = token === null || token < missing ? start : token - missing;
    }
    return found;
  }

  // the token whose row a map shows, or null where it shows none
  query(result, values) {
    if (!result?.axes.includes("query")) return result && "query" in result.at ? result.at.query : this.pointed(values);
    const { query } = this.picked(result, values);
    return query === null ? null : query + this.prefix - (result.prefix ?? 0);
  }

  // another image's viewer whose patch this one's are compared with: of two images side by side, the one that is pointed at
  compared(result, values) {
    const other = values.from;
    const joint = other && other !== this && [this, other].every(({ payload }) => payload.has("joint/directions"));
    return joint && String(result?.axes) === "block,query" ? other : null;
  }

  // values of a map [patches] for what is chosen
  heat(result, values) {
    const picked = this.picked(result, values), other = this.compared(result, values);
    if (result.changes) {
      const before = readMap(this.edits.former, result, picked);
      return readMap(this.payload, result, picked).map((value, i) => value - before[i]);
    }
    if (!other) return readMap(this.payload, result, picked);
    const [mine, theirs] = [this, other].map(({ payload }) => payload.array("joint/directions"));
    const [, patches, size] = mine.shape;
    const at = values.block * patches + (other.picked(result, values).query ?? 0);
    const found = new Float32Array(patches);
    for (let i = 0; i < patches; i++) {
      const row = values.block * patches + i;
      let sum = 0;
      for (let k = 0; k < size; k++) sum += mine.data[row * size + k] * theirs.data[at * size + k];
      found[i] = sum * mine.scale[row] * theirs.scale[at];
    }
    return found;
  }

  tokenName(token) {
    if (token === null) return "average patch";
    if (token < this.prefix) return `${this.header.model.prefix[token]} token`;
    const patch = token - this.prefix;
    return `patch in row ${Math.floor(patch / this.columns)}, column ${patch % this.columns}`;
  }

  // the words for a result's {class}, {block}, {head} and {query}
  fill(text, result, values) {
    const head = typeof values.head === "number" ? `head ${values.head}` : values.head === "max" ? "strongest head" : "mean over heads";
    const label = result.names?.class?.[this.picked(result, values).class] ?? "";
    const other = this.compared(result, values);
    const query = other ? `${other.tokenName(other.query(result, values))} of ${other.header.image.name}` : this.tokenName(this.query(result, values));
    const words = { block: `block ${values.block}`, head, query, class: label };
    return text.replace(/\{(block|head|query|class)\}/g, (_, axis) => words[axis]);
  }

  // what the colours over the image stand for; of a map for a class, with its name
  named(values) {
    const label = this.shown?.label ?? this.drawn.label;
    return this.shown?.axes?.includes("class") ? `${label} for “${this.fill("{class}", this.shown, values)}”` : label;
  }

  title(result, values) {
    return this.fill(result.title, result, values);
  }

  // --- the elements --------------------------------------------------------------------------------------------------

  build() {
    const { model, image, artifacts } = this.header;
    const name = image?.name || "Image";
    this.stage = new Stage(this, this.image, {
      choose: (hover) => this.state.set({ hover, from: this }),
      pin: (token) => this.state.set({ query: token === this.state.values.query ? null : token, hover: null, from: this }),
      label: `${name}. Arrow keys choose a patch, Home lets go of it.`,
      describedBy: `said-${this.id}`,
    });
    this.stage.element.addEventListener("pointerleave", () => this.state.set({ hover: null }));
    this.said = make("p", { class: "said", id: `said-${this.id}`, "aria-live": "polite" });
    this.legend = make("div", { class: "legend-line" });
    this.opacity = make("input", { type: "range", min: 0, max: 100, "aria-label": "Opacity of the heat map" });
    this.opacity.addEventListener("input", () => this.state.set({ opacity: Number(this.opacity.value) / 100 }));
    const save = make("button", { class: "chip", onclick: () => this.save() }, "Save as PNG");
    this.outliers = artifacts ? make("button", { class: "chip", title: artifacts.said, onclick: () => this.state.set({ outliers: this.state.values.outliers === "shown" ? null : "shown" }) }, "Colour them too") : null;
    const aside = artifacts?.patches.length === 1 ? "1 patch is not coloured: the model stores other information in it" : `${artifacts?.patches.length} patches are not coloured: the model stores other information in them`;
    this.artifacts = artifacts ? make("details", { class: "artifacts", ontoggle: () => this.state.set({ tick: performance.now() }) }, make("summary", {}, aside), make("p", {}, artifacts.said), this.outliers) : null;
    this.against = make("button", { class: "chip", onclick: () => this.state.set({ against: this.state.values.against ? null : "shown" }) }, "Evidence against");
    this.edits = this.source.ablate ? new Edits(this) : null;
    this.headline = new Headline(this);
    this.list = make("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
    this.panel = make("div", { class: "panel", role: "tabpanel", id: `panel-${this.id}`, tabindex: "-1" });
    this.buttons = new Map();
    for (const [group, views] of this.groups) {
      const button = make("button", { role: "tab", class: views.some((view) => view.pending) ? "pending" : null, id: `tab-${this.id}-${this.buttons.size}`, "aria-controls": `panel-${this.id}`, "aria-label": group, onclick: () => this.state.set({ view: this.opens(views).name }) }, make("b", {}, group), make("small", {}, this.header.groups[group]));
      button.addEventListener("keydown", (event) => this.step(event));
      this.buttons.set(group, button);
      this.list.append(button);
    }
    const under = make("div", { class: "controls under" }, make("label", { class: "slider" }, make("span", {}, "Colours"), this.opacity), this.against, save);
    const story = this.header.views.find((view) => view.name === "story");
    this.story = story ? make("nav", { class: "story-line", "aria-label": `How it got there: ${model.name}, ${name}` }, make("span", {}, "How it got there:"), story.results.length ? this.steps(story) : null) : null;
    const left = this.hasStage ? make("div", { class: "left" }, this.stage.element, this.legend, this.said, this.edits?.element, this.story, under, this.artifacts) : null;
    const views = make("div", { class: "views" }, this.list, this.headline.element, this.panel);
    this.element = make("article", { class: left ? "viewer" : "viewer alone", "aria-label": `${model.name}: ${name}` }, this.headline.head, left, views);
  }

  // the buttons of the story's steps
  steps(story) {
    return story.results[0].steps.map((step, i) => make("button", { "aria-label": `Step ${i}: ${step.title}`, onclick: () => this.state.set({ view: "story", step: i }) }, step.title));
  }

  // the view that a group opens with: the one the page opened with, or its first
  opens(views) {
    return views.find((view) => view.name === this.header.start.view) ?? views[0];
  }

  // a view's panel: chips for the other views of its tab, its results one below the other, how to read it
  show(view) {
    const siblings = this.groups.get(view.group);
    const chips = siblings.map((each) => make("button", { class: each.pending ? "chip pending" : "chip", "aria-pressed": String(each === view), title: each.read, onclick: () => this.state.set({ view: each.name }) }, each.title));
    this.chips = new Map(siblings.map((each, i) => [each.name, chips[i]]));
    const rest = chips.filter((_, i) => siblings[i].more && siblings[i] !== view);
    for (const chip of rest) chip.hidden = !this.wide;
    if (rest.length) {
      const more = make("button", { class: "chip more", "aria-expanded": String(Boolean(this.wide)), onclick: () => { this.wide = !this.wide; more.setAttribute("aria-expanded", String(this.wide)); for (const chip of rest) chip.hidden = !this.wide; } }, `${rest.length} more`);
      chips.push(more);
    }
    const moves = controls(this, view.results);
    const results = this.edits ? [...view.results].sort((a, b) => switches(b) - switches(a)) : view.results; // what can be clicked first
    this.parts = [moves, ...results.map((result) => KINDS[result.kind](this, result))];
    const words = make("div", { class: "sentences" }, make("h3", { class: siblings.length > 1 ? "visually-hidden" : null }, view.title), make("p", {}, view.read), make("p", { class: "beware" }, view.beware), (this.wait = view.pending ? make("p", { class: "pending", role: "status" }) : null));
    this.panel.replaceChildren(...(siblings.length > 1 ? [make("div", { class: "chips", role: "group", "aria-label": `${view.group}: views` }, chips)] : []), words, ...this.parts.map((part) => part.element ?? ""));
    const tab = this.buttons.get(view.group);
    this.panel.setAttribute("aria-labelledby", tab.id);
    for (const button of this.buttons.values()) {
      button.setAttribute("aria-selected", String(button === tab));
      button.tabIndex = button === tab ? 0 : -1;
    }
  }

  // what stands where a view is still being worked out
  waiting(view) {
    if (this.failed) return `Not worked out: ${this.failed}`;
    if (this.before && view.results.length) return "Being worked out … Until then this is from before the change.";
    const ready = this.standIn(view);
    const named = ready && this.header.views.find((each) => each.results.includes(ready));
    if (!named) return "Being worked out …";
    return `Being worked out … Until then the image shows “${named.title}”${this.before && named.pending ? " from before the change" : ""}.`;
  }

  step(event) {
    const names = [...this.buttons.keys()];
    const at = names.indexOf(this.view.group);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const name = names[(to + names.length) % names.length];
    this.state.set({ view: this.opens(this.groups.get(name)).name });
    this.buttons.get(name).focus();
  }

  // --- drawing -------------------------------------------------------------------------------------------------------

  update(values) {
    const begun = performance.now();
    values = { ...values, block: Math.min(values.block, this.depth - 1) };
    if (typeof values.head === "number" && values.head >= this.heads) values.head = "mean";
    const { views, start } = this.header;
    const view = views.find((each) => each.name === values.view) ?? views.find((each) => each.name === start.view) ?? views[0];
    if (view !== this.view) {
      if (this.timer) this.play(); // stops
      this.view = view;
      this.show(view);
    }
    this.opacity.value = Math.round(100 * values.opacity);
    this.shown = this.edits?.difference(this.mapOf(view)) ?? this.mapOf(view);
    const overlay = this.parts.find((part) => part.overlay)?.overlay(values);
    this.drawn = overlay ?? this.read(this.shown, values);
    this.headline.update(values);
    const tried = this.headline.removed(values), removed = tried ?? this.edits?.removed ?? null;
    this.edits?.update();
    const outliers = this.artifacts?.open || values.outliers === "shown" ? this.drawn.outliers : null; // outlined where they are spoken of
    const mark = start.pixel?.map((at, i) => (at + 0.5) / this.header.model.size[i]) ?? null;
    if (this.hasStage) this.stage.draw({ mark, opacity: values.opacity, ...this.drawn, outliers, removed, ...(tried && values.way === "show" ? { values: null, colours: null } : {}) });
    this.legend.replaceChildren(this.drawn.values && !(tried && values.way === "show") ? legend(this.shown ?? { label: this.drawn.label }, this.drawn, this.named(values), this.shown ? this.fill("{class}", this.shown, values) : "") : "", this.drawn.contour?.size ? make("span", { class: "outlined" }, `the ${this.drawn.contour.size} strongest`) : "", ...(this.drawn.legend ?? []));
    this.against.hidden = !this.shown?.signed || Boolean(this.shown.limits || this.shown.changes);
    this.against.setAttribute("aria-pressed", String(Boolean(values.against)));
    if (this.outliers) {
      const has = Boolean(this.drawn.outliers);
      this.artifacts.hidden = !has;
      this.outliers.setAttribute("aria-pressed", String(values.outliers === "shown"));
    }
    this.story?.querySelectorAll("button").forEach((button, i) => button.setAttribute("aria-pressed", String(view.name === "story" && i === (values.step ?? 0))));
    if (this.wait && this.wait.textContent !== this.waiting(view)) this.wait.textContent = this.waiting(view);
    for (const part of this.parts) part.update(values);
    this.say(values);
    this.took = performance.now() - begun; // how long a hover takes to answer: measured by the tests
  }

  // what a view lays over the image: its map; of views about blocks or heads, their attention; of answers, the evidence
  mapOf(view) {
    const own = view.results.find((result) => result.kind === "map") ?? this.standIn(view);
    const byHead = view.results.some((each) => ["dots", "steps"].includes(each.kind) || (each.kind === "bars" && each.positions) || (each.kind === "matrix" && (each.rows === "block" || each.prefix !== null)));
    if (own || byHead) return own ?? this.attention;
    const answers = view.results.some((each) => ["removal", "lines"].includes(each.kind) || each.logits);
    return answers ? this.header.views.flatMap((each) => each.results).find((each) => each.kind === "map" && each.axes.includes("class")) ?? null : null;
  }

  // while a map of evidence is being worked out, the best one that is ready
  standIn(view) {
    if (!view.pending || view.group !== "Why") return null;
    return this.groups.get("Why").flatMap((each) => each.results).find((result) => result.kind === "map" && result.axes.includes("class")) ?? null;
  }

  read(result, values) {
    if (!result) return { values: null, query: this.pointed(values) };
    const query = this.compared(result, values) ? null : this.query(result, values);
    if (result.colours) {
      const { data, shape } = this.payload.array(result.array);
      const size = shape.slice(-2).reduce((a, b) => a * b, 1);
      return { colours: data.subarray(size * values.block, size * (values.block + 1)), query };
    }
    const heat = this.heat(result, values);
    const without = leftOut(result, values), outliers = leftOut(result, { ...values, outliers: null });
    return { values: heat, query, outliers, contour: this.strongest(result, heat, without, values), ...rangeOf(result, heat, without, values.against) };
  }

  // the map whose patches the headline hides
  get tested() {
    return this.header.views.find((view) => view.name === "removal")?.results[0] ?? null;
  }

  // the strongest patches of a map of evidence, those that the headline speaks of or a tenth: they have a line around them
  strongest(result, heat, without, values) {
    if (!result.ends || result.changes) return null;
    const outlined = result === this.tested && this.headline.outlined(values);
    if (outlined) return new Set(outlined);
    const found = [...heat.keys()].filter((i) => heat[i] > 0 && !without?.has(i)).sort((a, b) => heat[b] - heat[a] || a - b);
    return new Set(found.slice(0, Math.round(heat.length / 10)));
  }

  say(values) {
    const { values: heat, without } = this.drawn;
    if (!heat || !this.shown?.says) return void (this.said.textContent = "");
    const text = this.shown.label === "attention" || this.shown.label.startsWith("share") ? percent : number;
    const pointed = this.pointed(values);
    if (!this.shown.axes.includes("query") && !("query" in this.shown.at) && pointed !== null && pointed >= this.prefix) {
      const value = heat[pointed - this.prefix], rank = heat.reduce((above, other) => above + (other > value), 1);
      const words = { patch: this.tokenName(pointed), number: text(value).replace("-", "−"), label: this.shown.label, rank, count: heat.length, change: this.change(value, values), doubt: this.doubt(value, pointed - this.prefix, values) };
      const sentence = this.edits?.gone.has(pointed - this.prefix) ? `${words.patch} is ${this.edits.way === "blur" ? "blurred" : "gone"}.` : without?.has(pointed - this.prefix) ? `${words.patch} is not coloured: the model stores other information in it.` : (this.shown.points ?? "").replace(/\{(\w+)\}/g, (_, word) => words[word]);
      return this.tell(sentence);
    }
    const { query } = this.picked(this.shown, values);
    const own = this.shown.limits && query !== null && !this.compared(this.shown, values) ? query - (this.shown.prefix ?? 0) : -1; // a patch is like itself
    let best = own === 0 ? 1 : 0;
    for (let i = 0; i < heat.length; i++) if (i !== own && !without?.has(i) && (heat[i] > heat[best] || without?.has(best))) best = i;
    const words = this.fill(this.shown.says, this.shown, values).replace("{peak}", `the ${this.tokenName(this.prefix + best)}`).replace("{place}", this.tokenName(this.prefix + best).replace("patch in ", "") + " (from 0)").replace("{value}", percent(heat[best])).replace("{number}", number(heat[best])).replace("{change}", () => this.change(heat[best], values));
    this.tell(words);
  }

  tell(words) {
    this.said.textContent = words && `${words[0].toUpperCase()}${words.slice(1)}`.replace(/ %/g, "\u00a0%");
  }

  // an effect on log-odds, as what hiding the patch would do to the probability of a class, or to a number
  change(value, values) {
    const asked = this.header.classes[this.classAt(values)];
    const odds = (asked.probability / (1 - asked.probability)) * Math.exp(-value);
    const [before, after] = "deviation" in asked ? [asked.value, asked.value - asked.deviation * value].map(quantity) : [asked.probability, odds === Infinity ? 1 : odds / (1 + odds)].map(percent);
    if (before === after) return `hiding it alone leaves “${asked.class_name}” at ${before}`;
    return `hiding it alone moves “${asked.class_name}” from ${before} to about ${after}`;
  }

  // where an effect is less than twice its standard error, say so
  doubt(value, patch, values) {
    const { results } = this.header.views.find((view) => view.results.includes(this.shown)) ?? { results: [] };
    const error = results.find((result) => result.part === "error");
    return error && Math.abs(value) < 2 * this.heat(error, values)[patch] ? ", which may be chance" : "";
  }

  // --- doing ---------------------------------------------------------------------------------------------------------

  play() {
    if (this.timer) {
      clearInterval(this.timer);
      this.timer = null;
    } else {
      this.timer = setInterval(() => this.state.set({ block: (Math.max(0, this.state.values.block) + 1) % this.depth }), STEP);
      this.state.set({ block: 0 });
    }
    this.playButton.setAttribute("aria-pressed", String(Boolean(this.timer)));
    this.playButton.textContent = this.timer ? "Pause" : "Play";
  }

  toggle(block, head) {
    return this.edits.change(() => this.edits.toggle(this.edits.off, `${block}.${head}`));
  }

  clear() {
    return this.edits.change(() => this.edits.off.clear());
  }

  // what is on the image now, with its title, what is hidden, its scale, and the names of model and image
  async save() {
    const width = 1024, height = Math.round(width * this.stage.ratio), band = 132;
    const canvas = new OffscreenCanvas(width, height);
    render(canvas, this.image, this.stage.small, this.stage, this.stage.shown);
    const whole = new OffscreenCanvas(width, height + band);
    const context = whole.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, width, height + band);
    context.drawImage(canvas, 0, 0);
    const write = (text, down, font, colour = "#17191d") => {
      context.font = font;
      context.fillStyle = colour;
      context.fillText(text, 20, height + down, width - 40);
    };
    const { drawn, shown, stage } = this;
    const title = shown && drawn.values ? this.title(shown, this.state.values) : this.view.name === "story" ? this.parts.at(-1).title() : this.view.title;
    write(stage.shown.removed ? this.headline.proof.textContent : title, 36, "600 24px system-ui, sans-serif");
    const scaled = stage.shown.values ? this.legend.textContent && [...this.legend.firstChild.querySelectorAll("span:not(.ramp)")].map((each) => each.textContent).join(" to ") + (this.legend.firstChild.title && ` (${this.legend.firstChild.title})`) : "";
    drawn.legend?.reduce((left, key) => {
      context.font = "18px system-ui, sans-serif";
      context.fillStyle = key.firstChild.style.background;
      context.fillRect(left, height + 54, 14, 14);
      context.fillStyle = "#17191d";
      context.fillText(key.textContent, left + 22, height + 68);
      return left + 46 + context.measureText(key.textContent).width;
    }, 20);
    if (scaled) write(`Colours: ${scaled}${drawn.without?.size ? `; ${drawn.without.size} artifacts left out` : ""}${stage.shown.contour?.size ? `; outlined: the ${stage.shown.contour.size} strongest` : ""}`, 68, "18px system-ui, sans-serif");
    const answer = this.answerOf(this.header.predictions);
    const named = [this.header.model.name, this.header.image?.name, answer && `${answer.class_name} ${amount(answer)}`];
    write(named.filter(Boolean).join(" · "), 100, "18px system-ui, sans-serif", "#5b626b");
    const blob = await whole.convertToBlob({ type: "image/png" });
    const link = make("a", { href: URL.createObjectURL(blob), download: `${this.header.image?.name.replace(/\.[a-z]+$/i, "") || "model"}-${shown?.array && drawn.values ? shown.array.split("/")[0] : this.view.name}.png` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  destroy() {
    clearInterval(this.timer);
    clearInterval(this.headline.timer);
    this.state.listeners.delete(this.watcher);
    this.element.remove();
  }
}
