// The first screen beside the image: the answer, the evidence for it in one sentence, the slider that hides patches or shows
// them alone, the next answers as bars, and a box that finds any class.

import { amount, make, percent, quantity, swatch } from "./dom.js";

const SHOWN = 5;
const LONG = 32; // letters of a name that are set smaller: a sentence
const STEP = 90; // milliseconds a step when patches are hidden one after the other
const NOUNS = { classify: ["class", "classes"], multilabel: ["label", "labels"], regress: ["number", "numbers"], segment: ["class", "classes"] };

export class Headline {
  constructor(viewer) {
    this.viewer = viewer;
    const { header, state } = viewer;
    this.removal = header.views.filter((view) => !view.pending).flatMap((view) => view.results).find((result) => result.kind === "removal") ?? null;
    this.task = header.model.task ?? "classify";
    const asked = header.model.compares ? header.predictions.find((each) => each.index === header.start.class) : null; // a sentence was asked for: it comes first, likely or not
    const first = asked ?? header.predictions[0];
    const compares = header.model.compares ? ` · ${header.model.compares}` : "";
    this.first = first;
    const about = this.about = first ? `The answer of ${header.model.name}${header.image?.name ? ` for ${header.image.name}` : ""}${compares}` : `${header.model.name}${compares}`;
    const words = first ? [make("strong", {}, first.class_name), " ", make("span", {}, amount(first), this.task === "segment" ? make("small", {}, " of the image") : null)] : [make("strong", {}, header.image?.name || header.model.name)];
    const waits = !viewer.failed && header.views.some((view) => view.pending && view.name === "evidence");
    this.proof = make("p", { class: waits ? "proof pending" : "proof", "aria-live": "polite" }, waits ? "Hiding patches, to see whether the map is right …" : "");
    this.verdict = make("p", { class: "verdict" });
    this.head = make("div", { class: "head" }, make("h2", { class: first?.class_name.length > LONG ? "answer-line long" : "answer-line" }, words), (this.sub = make("p", { class: "sub", title: header.model.summary }, about)), this.removal || waits ? [this.proof, this.verdict] : null);
    this.bars = make("ol", { class: this.task === "regress" ? "answers numbers" : "answers", "aria-label": { multilabel: "Labels", regress: "Numbers", segment: "Classes of pixels" }[this.task] ?? "Predictions" });
    const parts = [];
    if (this.removal) {
      this.alone = make("button", { class: "chip", onclick: () => this.turn() }, "Show only these");
      this.slider = make("input", { type: "range", min: 0, max: this.steps - 1, step: 1, "aria-label": "Patches, the strongest first" });
      this.slider.addEventListener("input", () => state.set({ count: Number(this.slider.value) }));
      this.amount = make("output");
      this.again = make("button", { class: "chip do", onclick: () => this.act() });
      parts.push((this.remove = make("div", { class: "remove" }, this.again, this.alone, make("span", { class: "amount" }, this.slider, this.amount))));
    }
    if (waits) parts.push(make("div", { class: "remove" }));
    if (first) parts.push(this.bars);
    if (first || viewer.source.sentence) parts.push((this.finder = this.search()));
    this.element = parts.length ? make("div", { class: "evidence" }, parts) : null;
    this.show(header.predictions, viewer.before);
  }

  // whether the patches on the image are those that the slider hides
  get tests() {
    const { view, shown, tested } = this.viewer;
    return view.group === "Why" && (tested === null || shown === tested);
  }

  get steps() {
    return this.removal.counts.length;
  }

  // the box that finds a class among all names, or takes a sentence in the place of one
  search() {
    const { header, state, source } = this.viewer;
    const { sentence } = source, names = header.classNames ?? [];
    this.found = make("p", { class: "found", role: "status" });
    if (names.length <= SHOWN && names.length <= this.listed(header.predictions).length && !sentence) return this.found; // all of them have bars
    const [noun, nouns] = NOUNS[this.task];
    const list = make("datalist", { id: `classes-${this.viewer.id}` });
    const box = make("input", { type: "search", list: list.id, placeholder: sentence ? "Type a sentence, such as: a red car" : `Find any of ${names.length} ${nouns}`, "aria-label": sentence ? "Ask for a sentence" : `Find a ${noun}`, autocomplete: "off" });
    if (sentence) box.value = state.values.sentence;
    box.addEventListener("focus", () => list.childElementCount || list.append(...names.map((name) => make("option", { value: name }))), { once: true });
    const ask = () => {
      const wanted = box.value.trim().toLowerCase();
      if (!wanted) return void (this.found.textContent = sentence && state.values.sentence ? sentence("") : "");
      const exact = names.findIndex((name) => name.toLowerCase() === wanted);
      if (sentence && exact < 0) return void (this.found.textContent = sentence(box.value.trim()));
      const index = exact >= 0 ? exact : names.findIndex((name) => name.toLowerCase().includes(wanted));
      if (index < 0) return void (this.found.textContent = `No ${noun} is called “${box.value.trim()}”.${header.model.compares && this.task === "classify" ? " For another sentence: vitreous explain --target." : ""}`);
      this.say(index);
    };
    box.addEventListener("change", ask);
    box.addEventListener("search", ask);
    return make("div", { class: "search" }, box, list, this.found);
  }

  // a class that was asked for: its probability, and its evidence where the page holds it
  say(index) {
    const { header, payload, state, source } = this.viewer;
    const name = header.classNames[index];
    const held = header.classes.some((each) => each.index === index);
    if (this.task === "classify") {
      const { data } = payload.array("probabilities");
      const rank = data.reduce((above, value) => above + (value > data[index]), 1);
      this.found.textContent = `“${name}” has ${percent(data[index])}, answer ${rank} of ${data.length}.`;
    } else {
      const text = amount(header.predictions.find((each) => each.index === index));
      this.found.textContent = `“${name}” ${{ multilabel: `has ${text} by itself`, regress: `is ${text}`, segment: `has ${text} of the image` }[this.task]}.`;
    }
    if (held) return this.choose(index);
    if (source.explain) return source.explain(index);
    this.found.textContent += ` This page holds the evidence for ${header.classes.map((each) => each.class_name).join(", ")}; for this ${NOUNS[this.task][0]}: vitreous explain --target "${name}".`;
  }

  choose(index) {
    const { viewer } = this;
    const at = viewer.classAt({ class: index });
    const holds = (result) => result.axes?.includes("class") && at < (result.names?.class?.length ?? Infinity);
    const here = viewer.view?.results.some(holds);
    const other = viewer.header.views.find((view) => view.results.some((result) => result.kind === "map" && holds(result)));
    viewer.state.set({ class: index, count: null, ...(here || !other ? {} : { view: other.name }) });
  }

  // --- bars ----------------------------------------------------------------------------------------------------------

  // those that have bars: of a mask, the classes that it has or had before
  listed(predictions, before = null) {
    if (this.task !== "segment") return predictions;
    const had = (each) => before?.find((other) => other.index === each.index)?.probability > 0;
    return predictions.filter((each) => each.probability > 0 || had(each) || each.index === this.viewer.header.start.class);
  }

  // the first answers; beside them what changed since `before`
  show(predictions, before = null) {
    this.predictions = predictions;
    const explained = new Set(this.viewer.header.classes.map((each) => each.index));
    const asked = this.viewer.state.values.class;
    const shown = this.listed(predictions, before).slice(0, SHOWN);
    const extra = predictions.find((each) => each.index === asked);
    if (extra && !shown.includes(extra)) shown[SHOWN - 1] = extra;
    this.rows = shown.map((each) => {
      const was = before?.find((other) => other.index === each.index);
      const isNumber = "value" in each;
      const change = was ? (isNumber ? each.value - was.value : each.probability - was.probability) : 0;
      const bar = make("span", { class: "bar", style: { width: `${100 * (each.probability ?? 0)}%`, ...(each.colour ? { background: each.colour } : {}) } });
      const value = make("span", { class: "value" }, amount(each), before ? make("small", {}, ` ${change >= 0 ? "+" : "−"}${isNumber ? quantity(Math.abs(change)) : Math.abs(100 * change).toFixed(1)}`) : null);
      const marks = [each.colour ? swatch(each.colour) : null, each.present ? make("span", { class: "present", role: "img", "aria-label": "present", title: "Present: its probability reaches the threshold of this label" }, "✓") : null];
      const inside = [make("span", { class: "name" }, marks[0], each.class_name, marks[1]), make("span", { class: "track", "aria-hidden": "true" }, bar), value];
      const button = explained.has(each.index) || this.viewer.source.explain ? make("button", { class: "answer", "data-class": each.index, title: `Show the evidence for ${each.class_name}`, onclick: () => (explained.has(each.index) ? this.choose(each.index) : this.viewer.source.explain(each.index)) }, inside) : make("div", { class: "answer" }, inside);
      return { each, bar, value, button };
    });
    this.bars.replaceChildren(...this.rows.map(({ button }) => make("li", {}, button)));
    this.moved = false;
  }

  // --- hiding patches ------------------------------------------------------------------------------------------------

  // hide what the sentence tells of, or bring everything back
  act() {
    const { state } = this.viewer;
    clearInterval(this.timer);
    if (state.values.count !== null) return state.set({ count: null, way: "hide" });
    const last = this.removal.chosen[this.row ?? 0];
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return state.set({ way: "hide", count: last });
    let step = 0;
    this.timer = setInterval(() => {
      state.set({ way: "hide", count: ++step });
      if (step >= last) clearInterval(this.timer);
    }, STEP);
  }

  // show the patches alone that were hidden, or the other way round
  turn() {
    const { state } = this.viewer;
    clearInterval(this.timer);
    state.set({ way: state.values.way === "show" ? "hide" : "show", count: state.values.count ?? this.removal.chosen[this.row ?? 0] });
  }

  // patches that are hidden, and their colour; or null
  removed({ way, count }) {
    if (!this.removal || this.row === null || count === null || !this.tests) return null;
    const step = Math.min(count, this.steps - 1);
    const order = this.order(this.row);
    const amount = this.removal.counts[step];
    return { gone: new Set(way === "hide" ? order.subarray(0, amount) : order.subarray(amount)), colour: this.removal.colour };
  }

  order(row) {
    const { data, shape: [, patches] } = this.viewer.payload.array(this.removal.order);
    return data.subarray(row * patches, (row + 1) * patches);
  }

  // the patches that the sentence tells of, the strongest first, or null where nothing was hidden
  outlined({ count, class: asked }) {
    const row = this.viewer.classAt({ class: asked });
    if (!this.removal || row >= this.removal.names.class.length) return null;
    return this.order(row).subarray(0, this.removal.counts[Math.min(count || this.removal.chosen[row], this.steps - 1)]);
  }

  probability(index, way, step) {
    const { data, shape: [, steps, answers] } = this.viewer.payload.array(way === "hide" ? this.removal.hidden : this.removal.alone);
    const at = this.task === "classify" ? this.removal.answers.indexOf(index) : 0; // of another task, what is asked about is all that was followed
    return at < 0 ? null : data[(this.row * steps + step) * answers + at];
  }

  // an output with patches hidden or shown alone, or null where it was not followed: shares of a mask are not
  followed({ index }, asked, way, step) {
    if (this.task === "classify") {
      const probability = this.probability(index, way, step);
      return probability === null ? null : { probability };
    }
    if (index !== asked.index || this.task === "segment") return null;
    return this.removal.number ? { value: this.number(way, step) } : { probability: this.probability(index, way, step) };
  }

  number(way, step) {
    return (way === "hide" ? this.removal.number.hidden : this.removal.number.alone)[step];
  }

  update(values) {
    if (!this.element) return;
    const { view, header } = this.viewer;
    const why = view.group === "Why" || this.viewer.groups.size === 1 || !this.rows.length;
    const heads = view.results.some((result) => result.kind === "matrix" && result.columns === "head"); // switched off, they change the bars
    this.element.hidden = !why && !heads;
    for (const part of [this.remove, this.finder]) if (part) part.hidden = !why;
    if (this.remove && view.name === "outputs") this.remove.hidden = !this.tests; // what hiding does to a mask was not followed
    this.remove?.classList.toggle("idle", !this.tests);
    const at = this.viewer.classAt(values);
    const asked = header.classes[at];
    for (const { button, each } of this.rows) if (button.tagName === "BUTTON") button.setAttribute("aria-pressed", String(each.index === asked.index));
    if (this.task === "classify" && this.first && asked) this.sub.textContent = asked.index === this.first.index ? this.about : `${this.about} · coloured: evidence for “${asked.class_name}”`;
    if (!this.removal) return;
    this.row = at < this.removal.names.class.length ? at : null;
    const ready = this.row !== null;
    const { way } = values;
    const step = values.count === null || !this.tests ? null : Math.min(values.count, this.steps - 1);
    this.slider.disabled = this.again.disabled = this.alone.disabled = !ready;
    this.again.textContent = step !== null ? "Whole image" : ready ? `Hide these ${this.removal.counts[this.removal.chosen[this.row]]}` : "Hide";
    this.alone.setAttribute("aria-pressed", String(step !== null && way === "show"));
    this.slider.value = step ?? 0;
    const patches = this.removal.counts.at(-1);
    this.amount.textContent = `${this.removal.counts[Number(this.slider.value)]} of ${patches} ${step !== null && way === "show" ? "shown" : "hidden"}`;
    if (!ready) {
      this.proof.replaceChildren(`Hiding was tested for ${this.removal.names.class.join(", ")}.`);
      const { explain } = this.viewer.source;
      this.verdict.replaceChildren(explain ? make("button", { class: "link", onclick: () => explain(asked.index) }, `Test it for “${asked.class_name}”`) : `For “${asked.class_name}”: vitreous explain --target "${asked.class_name}".`);
    } else {
      const shownStep = step ?? this.removal.chosen[this.row];
      this.sentence(asked, step === null ? "hide" : way, shownStep);
      this.verdict.textContent = step === null || (way === "hide" && step === this.removal.chosen[this.row]) ? `${this.judged(asked)} ${step === null ? "" : this.instead(way, shownStep)}` : this.instead(way, shownStep);
    }
    this.verdict.classList.toggle("failed", ready && !this.removal.passed[this.row]);
    if (ready && step !== null) {
      for (const { each, bar, value } of this.rows) {
        const now = this.followed(each, asked, way, step);
        bar.style.width = `${100 * (now?.probability ?? 0)}%`;
        value.textContent = now === null ? "" : amount(now);
      }
      this.moved = true;
    } else if (this.moved) this.show(this.predictions, this.viewer.before);
  }

  sentence(asked, way, step) {
    const { number } = this.removal, write = number ? quantity : percent;
    const [whole, now] = [["hide", 0], [way, step]].map((at) => (number ? this.number(...at) : this.probability(asked.index, ...at)));
    const words = { count: this.removal.counts[step], patches: this.removal.counts.at(-1), class: asked.class_name, moves: write(now) === write(whole) ? "stays at" : `${now > whole ? "rises" : "falls"} from ${write(whole)} to` };
    const text = (way === "hide" ? this.removal.hide : this.removal.show).replace(/\{(count|patches|class|moves)\}/g, (_, name) => words[name]);
    const [before, after] = text.replace(/ %/g, "\u00a0%").split("{now}");
    this.proof.replaceChildren(before, make("b", {}, write(now)), after);
  }

  // whether the map did better than patches chosen without it
  judged() {
    const words = { count: this.removal.counts[this.removal.chosen[this.row]], ...this.rivals };
    return this.removal[this.removal.passed[this.row] ? "good" : "bad"].replace(/\{(count|random|centre)\}/g, (_, name) => words[name]);
  }

  // what is left with random patches hidden, and with those at the centre
  get rivals() {
    const { number } = this.removal, of = number ?? this.removal, write = number ? quantity : percent;
    return { random: write(of.random[this.row]), centre: write(of.centre[this.row]) };
  }

  // what the model answers with these patches hidden or alone
  instead(way, step) {
    if (this.task === "multilabel" || this.task === "regress") return "";
    const [name, probability] = this.removal.best[this.row][way === "hide" ? 0 : 1][step];
    if (this.task === "segment") return name === this.removal.names.class[this.row] ? `It is still taken for “${name}” there.` : `It is taken for “${name}” there then, ${percent(probability)}.`;
    const { class_name: first } = this.viewer.header.predictions[0];
    return name === first ? `The answer is still “${name}”.` : `The answer becomes “${name}”, ${percent(probability)}.`;
  }
}
