// The page of a report: its payloads lie in the file itself, one for each image.

import { make } from "./dom.js";
import { fromText } from "./payload.js";
import { DEFAULTS, State } from "./state.js";
import { Viewer } from "./viewer.js";

async function start() {
  const holder = document.getElementById("viewer");
  const parts = [...document.querySelectorAll('script[type="application/vitreous"]')];
  const state = new State(DEFAULTS);
  state.set(state.read(), false);
  let viewer = null;
  let number = null;
  const show = async (wanted) => {
    if (wanted === number) return;
    number = wanted;
    const part = parts[wanted] ?? parts[0];
    const payload = await fromText(part.textContent);
    if (number !== wanted) return;
    const { view, block, head, query, class: target } = payload.header.start;
    if (viewer === null) state.start({ view, block: block ?? 0, head: head ?? "mean", query, class: target });
    else if (!payload.header.classes.some((each) => each.index === state.values.class)) state.set({ class: target });
    const made = await Viewer.create(payload, state, { ablate: null });
    if (number !== wanted) return made.destroy();
    viewer?.destroy();
    viewer = made;
    holder.replaceChildren(viewer.element);
    globalThis.vitreous = { viewer, state };
    document.documentElement.dataset.ready = String(wanted);
  };
  if (parts.length > 1) {
    const buttons = [...document.querySelectorAll("#images button")];
    buttons.forEach((button, i) => button.addEventListener("click", () => state.set({ image: i, count: null, query: null, hover: null })));
    state.watch((values) => buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === values.image))));
  }
  state.watch((values) => show(values.image).catch(fail));
}

function fail(error) {
  document.getElementById("viewer").replaceChildren(make("p", { role: "alert" }, `This page cannot be shown: ${error.message}. A newer browser may help.`));
}

start().catch(fail);
