// The page of a run: curves, and a scrubber over the moments at which snapshots of the model were taken.

import { drawCurves } from "./curves.js";
import { make } from "./dom.js";
import { MOMENTS } from "./moments.js";
import { fromText } from "./payload.js";
import { scrubber } from "./scrubber.js";
import { State } from "./state.js";

async function start() {
  const inlined = document.querySelector('script[type="application/vitreous"]');
  if (!inlined) {
    drawCurves(document);
    document.documentElement.dataset.ready = "curves";
    return;
  }
  const payload = await fromText(inlined.textContent);
  const { moments } = payload.header;
  const state = new State({ epoch: moments.at(-1).epoch });
  const goTo = (epoch) => state.set({ epoch: moments[nearest(moments, epoch)].epoch });
  const charts = drawCurves(document, goTo);
  const bar = scrubber(moments.map(({ name, caption, epoch }) => ({ name, caption, short: String(epoch) })), { label: "Moment of training", choose: (i) => state.set({ epoch: moments[i].epoch }) });
  document.getElementById("scrubber").replaceWith(bar.element);
  const options = { opacity: 0.65 };
  const views = [...document.querySelectorAll(".moment")].map((element) => view(element, payload, options));
  const panels = [...document.querySelectorAll("details.all")].map((element) => all(element, payload, options, goTo));
  state.set(state.read(), false);
  state.watch(({ epoch }) => {
    const chosen = nearest(moments, epoch);
    bar.update(chosen);
    for (const chart of charts) chart.mark(moments[chosen].epoch);
    for (const each of [...views, ...panels]) each.update(chosen);
  });
  globalThis.vitreous = { payload, state, charts, views: Object.fromEntries(views.map((each) => [each.name, each])) };
  document.documentElement.dataset.ready = "moments";
}

function nearest(moments, epoch) {
  let best = 0;
  moments.forEach((each, i) => { if (Math.abs(each.epoch - epoch) < Math.abs(moments[best].epoch - epoch)) best = i; });
  return best;
}

// A view of the chosen moment
function view(element, payload, options) {
  const name = element.dataset.view;
  const numbers = payload.header.views[name];
  const sketch = MOMENTS[name].sketch(payload, false, options);
  const missing = make("p", { class: "missing", hidden: true }, "Not recorded at this moment.");
  element.style.setProperty("--widest", MOMENTS[name].widest);
  element.replaceChildren(...[sketch.element, missing, sketch.after].filter(Boolean));
  return {
    name,
    mosaic: sketch.mosaic,
    update(chosen) {
      const number = numbers[chosen];
      missing.hidden = number !== null;
      sketch.element.hidden = number === null;
      if (number !== null && number !== this.shown) sketch.update(number);
      this.shown = number;
    },
  };
}

// All moments of a view, drawn when they are first opened; a click goes to one
function all(element, payload, options, goTo) {
  const { moments, views } = payload.header;
  const name = element.dataset.view;
  const panels = element.querySelector(".panels");
  const buttons = [];
  let now = 0;
  const mark = () => buttons.forEach(([button, i]) => button.setAttribute("aria-pressed", String(i === now)));
  element.addEventListener("toggle", () => {
    if (!element.open || buttons.length) return;
    panels.style.setProperty("--panel", MOMENTS[name].panel);
    views[name].forEach((number, i) => {
      if (number === null) return;
      const sketch = MOMENTS[name].sketch(payload, true, options);
      const button = make("button", { class: "tile", "aria-label": moments[i].caption, onclick: () => goTo(moments[i].epoch) }, sketch.element, make("span", { "aria-hidden": "true" }, moments[i].name));
      buttons.push([button, i]);
      panels.append(button);
      sketch.update(number);
    });
    mark();
  });
  return { update(chosen) { now = chosen; mark(); } };
}

start().catch((error) => {
  const alert = make("p", { role: "alert" }, `Parts of this page could not be drawn: ${error.message}. Try a newer browser.`);
  document.querySelector("header").append(alert);
});
