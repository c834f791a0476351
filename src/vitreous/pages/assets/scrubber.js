// A sticky bar: a slider over named stops, a button that plays through them, and the caption of the chosen one.

import { make } from "./dom.js";

const STEP = 900; // milliseconds per stop when playing

// stops: [{ name, caption, short }]; `choose(i)` is called when the user picks another
export function scrubber(stops, { label, choose }) {
  const last = stops.length - 1;
  const now = make("output", { class: "now" });
  const input = make("input", { type: "range", min: 0, max: last, step: 1, "aria-label": label, disabled: last === 0 });
  const play = make("button", { class: "play", "aria-pressed": "false", onclick: () => (timer ? stop() : start()), disabled: last === 0 }, "Play");
  const marks = stops.map((stop) => make("span", {}, stop.short));
  const every = Math.ceil(stops.length / 16); // so that names do not run into each other
  marks.forEach((mark, i) => { if (i % every && i !== last) mark.textContent = ""; });
  const element = make("div", { class: "scrubber", role: "group", "aria-label": label }, now, play, input, make("div", { class: "stops", "aria-hidden": "true" }, marks));
  let timer = null;
  let current = last;
  input.addEventListener("input", () => {
    stop();
    choose(Number(input.value));
  });

  function start() {
    now.setAttribute("aria-live", "off"); // else every stop would be read aloud
    choose(current === last ? 0 : current + 1);
    timer = setInterval(() => (current === last ? stop() : choose(current + 1)), STEP);
    showPlaying();
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    now.setAttribute("aria-live", "polite");
    showPlaying();
  }

  function showPlaying() {
    play.setAttribute("aria-pressed", String(Boolean(timer)));
    play.textContent = timer ? "Pause" : "Play";
  }

  return {
    element,
    update(chosen) {
      current = chosen;
      input.value = chosen;
      input.setAttribute("aria-valuetext", stops[chosen].caption);
      now.textContent = stops[chosen].caption;
      marks.forEach((mark, i) => mark.classList.toggle("here", i === chosen));
    },
  };
}
