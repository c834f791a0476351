// What is taken away before the model is asked again: heads switched off, patches removed or blurred. Each step can be
// undone; answers and maps are those of the changed model, and the answers show the difference to before.

import { amount, make, percent } from "./dom.js";

export class Edits {
  constructor(viewer) {
    Object.assign(this, { viewer, off: new Set(), gone: new Set(), way: "tokens", past: [], news: "", base: null, removing: false, picking: false, differs: false });
    this.remove = make("button", { class: "chip", "aria-pressed": "false", onclick: () => this.switch() }, "Click patches away");
    this.ways = [["tokens", "without their tokens"], ["blur", "blurred"]].map(([way, text]) => [way, make("button", { class: "chip", onclick: () => this.change(() => (this.way = way), this.gone.size) }, text)]);
    this.pick = viewer.header.model.task === "segment" ? make("button", { class: "chip", "aria-pressed": "false", onclick: () => this.switch("picking") }, "Ask about one pixel") : null;
    this.undo = make("button", { class: "chip", onclick: () => this.back() }, "Undo");
    this.all = make("button", { class: "chip", onclick: () => this.clear() }, "Everything back");
    this.compare = make("button", { class: "chip", onclick: () => { this.differs = !this.differs; this.show(); } }, "Difference to before");
    this.message = make("p", { class: "message", role: "status" });
    this.more = make("span", { class: "chips", role: "group", "aria-label": "How patches are removed" }, this.ways.map(([, button]) => button));
    this.element = make("div", { class: "edits" }, make("span", { class: "chips" }, this.remove, this.pick, this.undo, this.all, this.compare), this.more, this.message);
    this.listen();
  }

  // --- what is changed -----------------------------------------------------------------------------------------------

  change(act, asks = true) {
    this.past.push({ off: [...this.off], gone: [...this.gone], way: this.way });
    act();
    return asks ? this.ask() : this.show();
  }

  toggle(set, key) {
    set.has(key) ? set.delete(key) : set.add(key);
  }

  back() {
    const last = this.past.pop();
    if (!last) return;
    Object.assign(this, { off: new Set(last.off), gone: new Set(last.gone), way: last.way });
    return this.ask();
  }

  clear() {
    return this.change(() => { this.off.clear(); this.gone.clear(); });
  }

  // --- clicking patches away -----------------------------------------------------------------------------------------

  // what a click on the image does: remove patches, ask about a pixel, or neither
  switch(mode = "removing") {
    const on = !this[mode];
    Object.assign(this, { removing: false, picking: false, [mode]: on });
    this.show();
  }

  // ask about the pixel at these shares of the image's height and width
  pixel(down, across) {
    const at = [down, across].map((share, i) => Math.min(this.viewer.header.model.size[i] - 1, Math.max(0, Math.floor(share * this.viewer.header.model.size[i]))));
    this.viewer.source.pixel(at.join(","));
  }

  listen() {
    const { stage, prefix } = this.viewer;
    let painting = null; // "away" or "back" while the pointer is down
    const paint = (event) => {
      const token = stage.at(event);
      if (token === null) return;
      const patch = token - prefix;
      painting ??= this.gone.has(patch) ? "back" : "away";
      painting === "away" ? this.gone.add(patch) : this.gone.delete(patch);
      this.show();
    };
    stage.element.addEventListener("pointerdown", (event) => {
      if (this.picking) {
        event.stopImmediatePropagation();
        const box = stage.canvas.getBoundingClientRect();
        return this.pixel((event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width);
      }
      if (!this.removing) return;
      event.stopImmediatePropagation();
      stage.element.focus({ preventScroll: true });
      stage.element.setPointerCapture(event.pointerId);
      this.past.push({ off: [...this.off], gone: [...this.gone], way: this.way });
      paint(event);
    }, true);
    stage.element.addEventListener("pointermove", (event) => painting && paint(event));
    stage.element.addEventListener("pointerup", () => {
      if (painting) this.ask();
      painting = null;
    });
    stage.element.addEventListener("keydown", (event) => {
      const { query } = this.viewer.state.values;
      if (!(this.removing || this.picking) || !["Enter", " "].includes(event.key) || query === null || query < prefix) return;
      event.preventDefault();
      const { rows, columns, covered } = this.viewer, patch = query - prefix;
      if (this.picking) return this.pixel((covered[0] * (Math.floor(patch / columns) + 0.5)) / rows, (covered[1] * ((patch % columns) + 0.5)) / columns);
      this.change(() => this.toggle(this.gone, query - prefix));
    });
  }

  // patches to leave out of the drawing; blurred ones are blurred in the image itself
  get removed() {
    if (!this.gone.size || (this.way === "blur" && !this.asking)) return null;
    return { gone: this.gone, colour: [128, 128, 128] };
  }

  // --- asking --------------------------------------------------------------------------------------------------------

  async ask() {
    const { viewer } = this;
    const mine = (this.asked = Symbol("asked"));
    this.asking = true;
    this.news = "Asking the model …";
    viewer.failed = null;
    viewer.element.classList.remove("failed");
    this.show();
    try {
      await viewer.source.loaded();
      if (this.asked !== mine) return;
      if (!this.changed) return this.restore();
      let first = true;
      for await (const part of viewer.source.ablate({ off: [...this.off].join(","), gone: [...this.gone].join(","), way: this.way, classes: viewer.header.classes.map((each) => each.index).join(",") })) {
        if (this.asked !== mine) return;
        if (first) await this.answered(part);
        else viewer.receive(part);
        first = false;
      }
    } catch (error) {
      if (this.asked !== mine || error.name === "AbortError") return;
      this.news = error.message;
      viewer.fail(error.message);
    } finally {
      if (this.asked === mine) this.asking = false;
      this.show();
    }
  }

  // the answers of the changed model; its views follow
  async answered(part) {
    const { viewer } = this;
    if (!viewer.before) this.base = this.keep();
    const { base } = this;
    viewer.payload.add(part);
    Object.assign(viewer.header, { predictions: part.header.predictions, classes: part.header.classes });
    viewer.before = base.predictions;
    await this.setImage(this.gone.size && this.way === "blur" ? await createImageBitmap(part.file("image")) : base.image);
    for (const view of viewer.header.views) view.pending = true;
    viewer.view = null;
    viewer.buttons.forEach((button) => button.classList.add("pending"));
    this.asking = false;
    this.news = this.sentence(...[base.predictions, part.header.predictions].map((found) => viewer.answerOf(found)));
    viewer.proves();
    this.show();
  }

  sentence(first, now) {
    const many = (count, word) => (count ? `${count} ${word}${count > 1 ? "s" : ""}` : "");
    const heads = [...this.off].filter((key) => key.includes(".")).length;
    const without = [many(heads, "head"), many(this.off.size - heads, "block"), this.way === "tokens" ? many(this.gone.size, "patch").replace("patchs", "patches") : ""].filter(Boolean).join(" and ");
    const blurred = this.way === "blur" && this.gone.size ? `${this.gone.size} patch${this.gone.size > 1 ? "es" : ""} blurred` : "";
    const words = [without && `without ${without}`, blurred && `with ${blurred}`].filter(Boolean).join(" and ");
    const start = words[0].toUpperCase() + words.slice(1);
    if (!now) return `${start}: the maps have changed.`;
    const { task } = this.viewer.header.model;
    if (task === "regress") return `${start} ${now.class_name} is ${amount(now)} instead of ${amount(first)}.`;
    if (task !== "classify") return `${start} ${now.class_name} has ${amount(now)}${task === "segment" ? " of the image" : ""} instead of ${amount(first)}.`;
    return now.index === first.index ? `${start} it still answers ${now.class_name}: ${percent(now.probability)} instead of ${percent(first.probability)}.` : `${start} it answers ${now.class_name} (${percent(now.probability)}) instead of ${first.class_name}.`;
  }

  // --- as it was before any change -----------------------------------------------------------------------------------

  keep() {
    const { header, image } = this.viewer;
    return { arrays: { ...header.arrays }, files: { ...header.files }, predictions: header.predictions, classes: header.classes, image, views: header.views.map((view) => ({ view, results: view.results, pending: view.pending })) };
  }

  // a part of the unchanged page that comes after a change: it is kept until everything is back
  later(part) {
    const { views } = this.base;
    this.former.add(part);
    for (const { name, results } of part.header.views) {
      const kept = views.find(({ view }) => view.name === name);
      if (results.length) Object.assign(kept, { results, pending: false });
      else views.splice(views.indexOf(kept), 1);
    }
  }

  // a map as its difference to before, where that is asked for and both are there
  difference(result) {
    const { arrays } = this.viewer.header;
    const known = this.differs && this.viewer.before && result && !result.colours && this.base.arrays[result.array] && arrays[result.array] !== this.base.arrays[result.array];
    return known ? { ...result, signed: true, limits: null, label: `${result.label}, change`, title: `${result.title}: change`, says: "", changes: true } : result;
  }

  // the arrays as they were
  get former() {
    const { viewer, base } = this;
    base.payload ??= Object.assign(Object.create(viewer.payload), { header: { ...viewer.header, arrays: base.arrays, files: base.files }, kept: new Map() });
    return base.payload;
  }

  get changed() {
    return this.off.size + this.gone.size > 0;
  }

  restore() {
    const { viewer, base } = this;
    Object.assign(this, { news: "", differs: false });
    viewer.source.stop();
    if (!viewer.before) return; // no change was answered yet
    const { header } = viewer;
    Object.assign(header, { arrays: { ...base.arrays }, files: { ...base.files }, predictions: base.predictions, classes: base.classes });
    header.views.splice(0, Infinity, ...base.views.map(({ view, results, pending }) => Object.assign(view, { results, pending })));
    for (const [group, views] of viewer.groups) views.splice(0, Infinity, ...header.views.filter((view) => view.group === group));
    viewer.payload.kept.clear();
    viewer.before = null;
    viewer.view = null;
    viewer.buttons.forEach((button, group) => button.classList.toggle("pending", viewer.groups.get(group).some((view) => view.pending)));
    this.setImage(base.image);
    viewer.proves();
    viewer.tells();
  }

  setImage(image) {
    this.viewer.image = this.viewer.stage.image = image;
  }

  // --- drawing -------------------------------------------------------------------------------------------------------

  show() {
    this.viewer.state.set({ tick: performance.now() });
  }

  update() {
    const { changed } = this;
    this.compare.hidden = !changed;
    this.compare.setAttribute("aria-pressed", String(this.differs));
    this.remove.setAttribute("aria-pressed", String(this.removing));
    this.pick?.setAttribute("aria-pressed", String(this.picking));
    this.viewer.stage.element.classList.toggle("removing", this.removing || this.picking);
    this.more.hidden = !this.removing && !this.gone.size;
    this.undo.hidden = this.undo.disabled = !this.past.length;
    this.all.hidden = !changed;
    for (const [way, button] of this.ways) button.setAttribute("aria-pressed", String(this.way === way));
    this.message.hidden = Boolean(this.viewer.panel.querySelector(".news")); // it stands there already
    const hint = this.removing && !changed ? "Click patches, or drag over them; with the arrow keys, Enter removes the patch that is chosen." : this.picking ? "Click a pixel; with the arrow keys, Enter asks about the middle of the patch that is chosen." : "";
    if (this.message.textContent !== (this.news || hint)) this.message.textContent = this.news || hint;
  }
}
