// The page of a report: its payloads lie in the file itself, one for each image. One image is shown, or two side by side.

import { make } from "./dom.js";
import { fromText } from "./payload.js";
import { DEFAULTS, State } from "./state.js";
import { Viewer } from "./viewer.js";

async function start() {
  const holder = document.getElementById("viewer");
  const parts = [...document.querySelectorAll('script[type="application/vitreous"]')];
  const state = new State(DEFAULTS);
  state.set(state.read(), false);
  let viewers = [];
  let shown = null; // the numbers of the images
  const show = async (values) => {
    const first = parts[values.image] ? values.image : 0;
    const wanted = [first, ...(parts[values.second] && values.second !== first ? [values.second] : [])];
    if (String(wanted) === String(shown)) return;
    const before = shown;
    shown = wanted;
    const payloads = await Promise.all(wanted.map((number) => fromText(parts[number].textContent)));
    if (shown !== wanted) return;
    const { view, block, head, query, class: target } = payloads[0].header.start;
    if (before === null) state.start({ view, block: block ?? 0, head: head ?? "mean", query, class: target });
    else if (!payloads[0].header.classes.some((each) => each.index === state.values.class)) state.set({ class: target });
    const made = await Promise.all(payloads.map((payload) => Viewer.create(payload, state, { ablate: null })));
    if (shown !== wanted) return made.forEach((viewer) => viewer.destroy());
    viewers.forEach((viewer) => viewer.destroy());
    viewers = made;
    state.set({ from: made[0] }); // the other one shows what is like the patch that is pointed at in this one
    holder.classList.toggle("two", made.length > 1);
    holder.replaceChildren(...made.map((viewer) => viewer.element));
    globalThis.vitreous = { viewer: made[0], viewers, state };
    document.documentElement.dataset.ready = String(wanted);
  };
  if (parts.length > 1) {
    const buttons = [...document.querySelectorAll("#images button")], second = document.getElementById("second");
    buttons.forEach((button, i) => button.addEventListener("click", () => state.set({ image: i, count: null, query: null, hover: null })));
    second.addEventListener("change", () => state.set({ second: second.value === "" ? null : Number(second.value), query: null, hover: null }));
    state.watch((values) => {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === values.image)));
      second.value = values.second === null || !parts[values.second] || values.second === values.image ? "" : String(values.second);
    });
  }
  state.watch((values) => show(values).catch(fail));
}

function fail(error) {
  document.getElementById("viewer").replaceChildren(make("p", { role: "alert" }, `This page cannot be shown: ${error.message}. A newer browser may help.`));
}

start().catch(fail);
