// A bar that stays in sight: a slider over named stops, a button that plays through them, and what the chosen one was.

import { make } from "./dom.js";

const STEP = 900; // milliseconds a stop when playing

// stops: [{ name, said, short }]; `choose(i)` is called when another is asked for
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
  let place = last;
  input.addEventListener("input", () => {
    stop();
    choose(Number(input.value));
  });

  function start() {
    now.setAttribute("aria-live", "off"); // else every stop would be read aloud
    choose(place === last ? 0 : place + 1);
    timer = setInterval(() => (place === last ? stop() : choose(place + 1)), STEP);
    tell();
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    now.setAttribute("aria-live", "polite");
    tell();
  }

  function tell() {
    play.setAttribute("aria-pressed", String(Boolean(timer)));
    play.textContent = timer ? "Pause" : "Play";
  }

  return {
    element,
    update(chosen) {
      place = chosen;
      input.value = chosen;
      input.setAttribute("aria-valuetext", stops[chosen].said);
      now.textContent = stops[chosen].said;
      marks.forEach((mark, i) => mark.classList.toggle("here", i === chosen));
    },
  };
}
