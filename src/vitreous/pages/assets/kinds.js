// Each kind of result that a view may compute (figures/kinds.py), drawn: `KINDS[kind](viewer, result)` makes elements once,
// and their `update(values)` is called whenever the reader moves.

import { crop, diagram } from "./architecture.js";
import { cells, dots, lines, matrix, ranking, scale } from "./charts.js";
import { robust } from "./colours.js";
import { make, number, percent, swatch } from "./dom.js";
import { imageOf } from "./mosaic.js";
import { slice } from "./payload.js";
import { fill, overlay, thumbnail } from "./stage.js";
import { Story } from "./story.js";

const count = (n) => [...Array(n).keys()];
const UNDER = 8; // classes of a mask that are named below the image
const pressed = (button, on) => button.setAttribute("aria-pressed", String(on));

// Values of a map [patches] for what is picked: { class, block, head, query }. `head` is a number, "mean" or "max"; a query of
// null is the mean over all patches.
export function readMap(payload, result, picked) {
  const { data, shape, scale: factors } = payload.array(result.array);
  const { axes, prefix } = result;
  const width = shape.at(-1);
  const size = (axis) => shape[axes.indexOf(axis)];
  const heads = axes.includes("head") && typeof picked.head !== "number" ? count(size("head")) : [picked.head];
  const queries = axes.includes("query") && picked.query === null ? count(size("query")).slice(prefix) : [picked.query];
  const total = new Float32Array(width), strongest = new Float32Array(width);
  for (const query of queries) {
    strongest.fill(0);
    for (const head of heads) {
      const at = { ...picked, head, query };
      const row = axes.reduce((index, axis, k) => index * shape[k] + at[axis], 0);
      const factor = factors ? factors[row] : 1, from = row * width;
      if (picked.head === "max" && heads.length > 1) for (let i = 0; i < width; i++) strongest[i] = Math.max(strongest[i], data[from + i] * factor);
      else for (let i = 0; i < width; i++) total[i] += (data[from + i] * factor) / (heads.length * queries.length);
    }
    if (picked.head === "max" && heads.length > 1) for (let i = 0; i < width; i++) total[i] += strongest[i] / queries.length;
  }
  return total.subarray(prefix);
}

// How a map's values become colours. What speaks against a class is hatched where the reader asks for it; a change is always
// drawn both ways; a similarity from −1 to 1 has colours of its own and no image below.
export function rangeOf(result, values, without = null, against = null) {
  const kind = !result.signed ? "tint" : result.limits ? "signed" : result.changes || against ? "tints" : "tint";
  if (result.limits) return { kind, peak: result.limits[1], low: result.signed ? 0 : result.limits[0], without };
  const counted = without?.size ? values.filter((_, i) => !without.has(i)) : values;
  return { kind, peak: robust(counted), low: result.signed || result.from_zero ? 0 : counted.reduce((a, b) => Math.min(a, b), Infinity), without };
}

// The patches that a map's colours leave out: artifacts, from the block on in which they are
export function leftOut(result, values) {
  if (!result.outliers?.length || values.outliers === "shown") return null;
  if (result.axes.includes("block") && values.block < result.outliers_from) return null;
  return new Set(result.outliers);
}

function slider(label, { max, value, oninput, text }) {
  const shown = make("output", {}, text(value));
  const input = make("input", { type: "range", min: 0, max, step: 1, value, "aria-label": label });
  input.addEventListener("input", () => oninput(Number(input.value)));
  const element = make("label", { class: "slider" }, make("span", {}, label), input, shown);
  return { element, update: (now) => { input.value = now; shown.textContent = text(now); } };
}

// What moves along the axes of a view's results: a slider of blocks, chips of heads and classes, a chip that lets the query go
export function controls(viewer, results) {
  const { state, header } = viewer;
  const all = results.flatMap((result) => result.axes ?? []);
  const axes = [...new Set(all)], panels = results.flatMap((result) => result.panels ?? []);
  const names = results.find((result) => result.names?.class)?.names;
  const parts = [], updates = [];
  if (axes.includes("block")) {
    const block = slider("Block", { max: viewer.depth - 1, value: 0, oninput: (next) => state.set({ block: next }), text: (now) => `${now} (of 0–${viewer.depth - 1})` });
    parts.push(block.element);
    updates.push((values) => block.update(values.block));
    if (results.some((result) => result.kind === "map")) parts.push((viewer.playButton = make("button", { class: "play", "aria-pressed": "false", onclick: () => viewer.play() }, "Play")));
  }
  if (axes.includes("head")) {
    const modes = [["mean", "Mean of heads"], ["max", "Strongest head"]].map(([mode, text]) => [mode, make("button", { class: "chip", onclick: () => state.set({ head: mode }) }, text)]);
    const heads = panels.includes("head") ? [] : count(viewer.heads).map((head) => [head, make("button", { class: "chip", "aria-label": `head ${head}`, onclick: () => state.set({ head }) }, String(head))]);
    parts.push(make("div", { class: "chips", role: "group", "aria-label": "Heads joined" }, [...modes, ...heads].map(([, button]) => button)));
    updates.push((values) => [...modes, ...heads].forEach(([mode, button]) => pressed(button, values.head === mode)));
  }
  if (viewer.prefix > 0 && results.some((result) => result.axes?.includes("query") && result.prefix > 0)) {
    const back = make("button", { class: "chip", onclick: () => state.set({ query: null, hover: null }) }, header.model.readsMean ? "All patches" : "Class token");
    parts.push(back);
    updates.push((values) => pressed(back, (viewer.pointed(values) ?? 0) < viewer.prefix));
  }
  if (axes.includes("class") && !results.some((result) => result.kind === "map")) {
    const classes = names.class.map((label, i) => make("button", { class: "chip", onclick: () => state.set({ class: header.classes[i].index }) }, label));
    parts.push(make("div", { class: "chips", role: "group", "aria-label": "Class" }, classes));
    updates.push((values) => classes.forEach((button, i) => pressed(button, i === Math.min(viewer.classAt(values), classes.length - 1))));
  }
  return { element: parts.length ? make("div", { class: "controls" }, parts) : null, update: (values) => updates.forEach((update) => update(values)) };
}

// Small maps along the axes that a map lays out: one tile an index, one a pair, or for queries one canvas of all
function panels(viewer, result) {
  const { payload, state } = viewer;
  const [rows, columns] = result.grid;
  const tile = (name, text, choose) => {
    const canvas = thumbnail(columns, rows);
    return { canvas, button: make("button", { class: "tile", "aria-label": name, onclick: choose }, canvas, make("span", {}, text)) };
  };
  const paint = (canvas, heat, values) => fill(canvas, heat, rangeOf(result, heat, leftOut(result, values), values.against));
  if (result.panels.length === 2) {
    const tiles = count(viewer.depth).flatMap((block) => count(viewer.heads).map((head) => ({ block, head, ...tile(`block ${block}, head ${head}`, `${block}.${head}`, () => state.set({ block, head })) })));
    const element = make("div", { class: "tiles", role: "group", "aria-label": "Blocks and heads", style: { "grid-template-columns": `repeat(${viewer.heads}, minmax(1.6rem, 4.5rem))` } }, tiles.map((each) => each.button));
    const update = (values) => tiles.forEach(({ canvas, button, block, head }) => {
      paint(canvas, viewer.heat(result, { ...values, block, head }), { ...values, block });
      pressed(button, values.block === block && values.head === head);
    });
    return { element: make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Blocks and heads" }, element), update };
  }
  const [axis] = result.panels;
  if (axis === "query") {
    const canvas = make("canvas", { class: "matrix", width: columns * (columns + 2) - 2, height: rows * (rows + 2) - 2, role: "img", "aria-label": result.title });
    const one = thumbnail(columns, rows);
    for (const index of count(rows * columns)) {
      paint(one, slice(payload, result.array, index), {});
      canvas.getContext("2d").drawImage(one, (index % columns) * (columns + 2), Math.floor(index / columns) * (rows + 2));
    }
    return { element: make("div", {}, canvas), update() {} };
  }
  const indices = axis === "head" && result.chosen ? result.chosen : count(axis === "head" ? viewer.heads : viewer.depth);
  const tiles = indices.map((index) => ({ index, ...tile(`${axis} ${index}`, `${axis} ${index}`, () => state.set({ [axis]: axis === "head" && state.values.head === index ? "mean" : index })) }));
  return {
    element: make("div", { class: axis === "head" ? "tiles" : "tiles narrow", role: "group", "aria-label": `${axis}s` }, tiles.map((each) => each.button)),
    update: (values) => tiles.forEach(({ canvas, button, index }) => {
      const moved = { ...values, [axis]: index };
      paint(canvas, viewer.heat(result, moved), moved);
      pressed(button, values[axis] === index);
      button.classList.toggle("gone", axis === "head" && viewer.off.has(`${values.block}.${index}`));
    }),
  };
}

// The map itself is on the image; here are its title, and small maps of the other classes, blocks or heads
function map(viewer, result) {
  const several = result.axes.includes("class") && result.names.class.length > 1;
  const tiles = result.panels.length ? panels(viewer, result) : several ? byClass(viewer, result) : null;
  const title = make(result.part && several ? "span" : "p", { class: "key" });
  const own = result.panels.length && !result.limits && result.panels[0] !== "query" ? ". Each small map has its own scale" : "";
  const aside = Boolean(result.part && several); // such as the errors of a map: there for who asks
  return {
    element: aside ? make("details", { class: "aside" }, make("summary", {}, title), tiles.element) : make("div", {}, title, tiles?.element),
    update(values) {
      const ranges = result.ends && viewer.shown === result ? `. Colours: ${scaleText(result, viewer.drawn).join(" to ")}` : own;
      title.textContent = viewer.title(result, values) + ranges;
      tiles?.update(values);
    },
  };
}

// One small image for each class, with the class's map over it
function byClass(viewer, result) {
  const [rows, columns] = result.grid;
  const small = new OffscreenCanvas(columns, rows);
  const tiles = result.names.class.map((name, i) => {
    const canvas = make("canvas", { width: 128, height: Math.round(128 * viewer.stage.ratio), class: "small smooth", "aria-hidden": "true" });
    const { index } = viewer.header.classes[i];
    return { i, index, canvas, button: make("button", { class: "tile", onclick: () => viewer.state.set({ class: index }) }, canvas, make("span", {}, name)) };
  });
  let last = null;
  return {
    element: make("div", { class: "tiles", role: "group", "aria-label": "Class" }, tiles.map((each) => each.button)),
    update(values) {
      tiles.forEach(({ button, i }) => pressed(button, i === viewer.picked(result, values).class));
      const key = [values.outliers, values.opacity, values.against].join();
      if (last === key) return;
      last = key;
      const without = leftOut(result, values);
      for (const { canvas, i } of tiles) {
        const heat = readMap(viewer.payload, result, { ...viewer.picked(result, values), class: i });
        overlay(canvas.getContext("2d"), { x: 0, y: 0, width: canvas.width, height: canvas.height }, viewer.image, small, { values: heat, columns, covered: viewer.covered, opacity: values.opacity, ...rangeOf(result, heat, without, values.against) });
      }
    },
  };
}

// The ends of a map's scale in numbers
function scaleText(result, { kind, peak, low }, label = result.label) {
  const text = result.label === "attention" || result.label.startsWith("share") ? percent : number;
  const both = kind === "tints" || kind === "signed";
  return [both ? `−${text(peak)}` : text(low), `${text(peak)}${result.limits ? "" : " or more"} ${label}`];
}

// The scale of a map's colours in words and a ramp, for under the image
export function legend(result, range, label = result.label, name = "") {
  const numbers = scaleText(result, range, label);
  if (!result.ends || result.changes) return scale(range.kind, ...numbers);
  const [none, strong] = result.ends.map((text) => text.replace("{class}", name));
  const made = scale(range.kind, range.kind === "tints" ? `against “${name}”` : none, range.kind === "tints" ? `for “${name}”` : strong);
  made.title = numbers.join(" to ");
  return made;
}

function drawMatrix(viewer, result) {
  const { data, shape, scale: factors } = viewer.payload.array(result.array);
  const [rows, columns] = shape.slice(-2);
  const title = make("p", { class: "key" }), drawn = make("div");
  const byHead = result.rows === "block" && result.columns === "head";
  const live = byHead && viewer.source.ablate !== null;
  const news = make("p", { class: "news", role: "status" });
  const blocks = live && viewer.source.blocks ? count(viewer.depth).map((block) => make("button", { class: "chip", "aria-label": `block ${block}`, onclick: () => viewer.edits.change(() => viewer.edits.toggle(viewer.off, String(block))) }, String(block))) : [];
  const choose = (block, head) => {
    if (live) viewer.toggle(block, head);
    viewer.state.set({ block, head });
  };
  const read = (picked) => {
    const found = new Float32Array(rows * columns);
    const heads = result.axes.includes("head") && typeof picked.head !== "number" ? count(viewer.heads) : [picked.head];
    for (const head of heads) {
      const first = result.axes.reduce((index, axis, k) => index * shape[k] + { ...picked, head }[axis], 0) * rows;
      for (let row = 0; row < rows; row++) {
        const factor = factors ? factors[first + row] : 1;
        for (let i = 0; i < columns; i++) {
          const value = data[(first + row) * columns + i] * factor;
          const at = row * columns + i;
          found[at] = picked.head === "max" ? Math.max(found[at], value) : found[at] + value / heads.length;
        }
      }
    }
    return found;
  };
  let last = null;
  return {
    element: make("div", {}, live ? [make("p", {}, "Click a head to switch it off and see the answer change."), make("button", { class: "chip", onclick: () => viewer.clear() }, "All heads on"), blocks.length ? make("p", { class: "chips", role: "group", "aria-label": "Blocks to switch off" }, "Switch a whole block off: ", blocks) : null, news] : null, title, drawn),
    update(values) {
      news.textContent = viewer.news;
      blocks.forEach((button, block) => pressed(button, viewer.off.has(String(block))));
      const picked = viewer.picked(result, values);
      const key = JSON.stringify([result.axes.map((axis) => picked[axis]), byHead && [values.block, values.head, [...viewer.off]]]);
      if (key === last) return;
      last = key;
      const words = viewer.title(result, values);
      title.textContent = byHead ? `${words} (rows: blocks, columns: heads)` : `${words}${result.label && `: ${result.label}`}`;
      const found = transform(read(picked), columns, result.scale);
      if (byHead) drawn.replaceChildren(cells(found, rows, columns, { title: words, kind: result.signed ? "signed" : "heat", choose, chosen: { layer: values.block, head: values.head }, off: live ? viewer.off : null, describe: (block, head, value) => `block ${block}, head ${head}: ${number(value)}` }));
      else {
        const tokens = result.prefix !== null, raw = tokens && result.scale === "raw";
        const low = !tokens || raw ? 0 : Math.min(...rowsOf(found, columns, Math.min)), peak = !tokens ? 1 : raw ? robust(found, null, 0.99) : Math.max(...rowsOf(found, columns, Math.max));
        drawn.replaceChildren(matrix(found, columns, { title: words, low, peak, down: result.rows, across: result.columns }), result.prefix === null ? "" : scale("heat", number(low), `${number(peak)}${raw ? " or more" : result.scale === "log" ? " (powers of ten)" : ""}`));
      }
    },
  };
}

const rowsOf = (values, columns, join) => count(values.length / columns).map((row) => join(...values.subarray(row * columns, (row + 1) * columns)));

function transform(values, columns, how) {
  if (how === "log") return values.map((value) => Math.log10(Math.max(value, 1e-6)));
  if (how !== "layer-norm") return values;
  const changed = new Float32Array(values.length);
  for (let from = 0; from < values.length; from += columns) {
    const row = values.subarray(from, from + columns);
    const mean = row.reduce((sum, value) => sum + value, 0) / columns;
    const spread = Math.sqrt(row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / columns + 1e-5);
    row.forEach((value, i) => { changed[from + i] = (value - mean) / spread; });
  }
  return changed;
}

function drawDots(viewer, result) {
  const { data, shape: [blocks, heads] } = viewer.payload.array(result.array);
  const drawn = make("div");
  let last = null;
  return {
    element: make("div", {}, make("p", { class: "key" }, `${result.label}, by block`), drawn),
    update({ block, head }) {
      const key = `${block}.${head}`;
      if (key === last) return;
      last = key;
      drawn.replaceChildren(dots(data, blocks, heads, { title: `${result.title}: ${result.label} by block`, unit: result.unit, ceiling: result.ceiling, chosen: { layer: block, head }, choose: (b, h) => viewer.state.set({ block: b, head: h }) }));
    },
  };
}

function bars(viewer, result) {
  const rows = result.names.map((name, i) => {
    const position = result.positions?.[i];
    const note = result.logits ? `(${number(result.logits[i])})` : null;
    return { name, value: result.values[i], note, onclick: position ? () => viewer.state.set({ block: position[0], head: position[1] }) : null };
  });
  const options = result.logits ? { title: "Probability, and the logit behind it", share: true } : { title: result.label, unit: "±", peak: result.limits?.[1] ?? null };
  return { element: make("div", {}, make("p", { class: "key" }, result.logits ? options.title : `${result.title}: ${result.label}`), ranking(rows, options)), update() {} };
}

function steps(viewer, result) {
  const { data, shape: [classes, length] } = viewer.payload.array(result.array);
  const chart = make("div"), key = make("p", { class: "key" });
  const table = make("table", { class: "plain" }, make("tr", {}, ...["after", "answer", "probability"].map((text) => make("th", { scope: "col" }, text))));
  result.steps.forEach((step, i) => table.append(make("tr", {}, make("th", { scope: "row" }, i ? make("button", { class: "link", onclick: () => viewer.state.set({ block: i - 1 }) }, step) : step), make("td", {}, result.answers[i]), make("td", {}, percent(result.probabilities[i])))));
  let last = null;
  return {
    element: make("div", {}, key, chart, table),
    update(values) {
      const chosen = Math.min(viewer.classAt(values), classes - 1);
      if (chosen === last) return;
      last = chosen;
      const label = result.names.class[chosen];
      key.textContent = `Probability of ${label} after each block; thin: the other likely classes`;
      const series = result.names.class.map((name, i) => ({ name, values: data.subarray(i * length, (i + 1) * length), quiet: i !== chosen, strong: i === chosen }));
      chart.replaceChildren(lines(series, { title: `Probability of ${label} after each block`, label: "after block", names: ["in", ...count(length - 1)].map(String) }));
    },
  };
}

// Two charts: the answers while the strongest patches are hidden, and while they are shown alone
function removal(viewer, result) {
  const drawn = make("div");
  let last = null;
  return {
    element: make("div", {}, make("p", { class: "key" }, result.title), drawn),
    update(values) {
      const row = Math.min(viewer.classAt(values), result.names.class.length - 1);
      if (row === last) return;
      last = row;
      drawn.replaceChildren(...[["hidden", "patches hidden, the strongest first"], ["alone", "patches shown alone, the strongest first"]].map(([array, label]) => {
        const { data, shape: [, steps, answers] } = viewer.payload.array(result[array]);
        const series = count(Math.min(5, answers)).map((i) => ({ name: result.labels[i], colour: i, strong: i === row, values: Float32Array.from({ length: steps }, (_, step) => data[(row * steps + step) * answers + i]) }));
        return lines(series, { title: `Probability of ${result.names.class[row]} and other answers by ${label}`, label, names: result.counts.map(String) });
      }));
    },
  };
}

function drawLines(viewer, result) {
  const quiet = (name) => result.baselines.includes(name);
  const colours = result.panels[0].names.filter((name) => !quiet(name));
  const charts = result.panels.map((panel) => {
    const { data, shape: [, length] } = viewer.payload.array(panel.array);
    const series = panel.names.map((name, i) => ({ name, values: data.subarray(i * length, (i + 1) * length), quiet: quiet(name), dashed: quiet(name), ...(quiet(name) ? {} : { colour: colours.indexOf(name) }) }));
    // all lines meet at the end: they are named where half of the patches are gone
    return [make("h3", { class: "sub" }, panel.title), lines(series, { title: panel.title, label: panel.label, names: count(length).map((i) => percent(i / (length - 1))), at: Math.round(length / 4) })];
  });
  const best = result.panels.map(({ areas, better }) => (better === "lower" ? Math.min(...areas) : Math.max(...areas)));
  const head = make("tr", {}, make("th", { scope: "col" }, "area under the curve"), result.panels.map((panel) => make("th", { scope: "col" }, panel.title)));
  const cell = (panel, i, k) => (panel.areas[i] === best[k] ? make("td", { class: "best" }, `${panel.areas[i].toFixed(3)} best`) : make("td", {}, panel.areas[i].toFixed(3)));
  const rows = result.panels[0].names.map((name, i) => make("tr", {}, make("th", { scope: "row" }, quiet(name) ? `${name} (baseline)` : name), result.panels.map((panel, k) => cell(panel, i, k))));
  return { element: make("div", {}, make("p", { class: "message" }, result.verdict), make("p", { class: "key" }, `${result.title}. Dashed: maps that know nothing of the model.`), charts.flat(), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Areas. ${result.title}` }, make("table", { class: "plain" }, head, rows))), update() {} };
}

function tiles(viewer, result) {
  if (result.grid) return { element: cut(viewer, result), update() {} };
  const found = viewer.payload.array(result.array);
  const [total, height, width] = found.shape;
  const all = count(total).map((i) => {
    const text = result.shares ? percent(result.shares[i]) : "";
    const canvas = make("canvas", { width, height, class: "small", role: "img", "aria-label": `${result.title}, number ${i}${text && `: ${text} of the variance`}` });
    canvas.getContext("2d").putImageData(imageOf(found, i), 0, 0);
    return make("div", { class: "tile" }, canvas, make("span", {}, text));
  });
  return { element: make("div", {}, make("p", { class: "key" }, result.title), make("div", { class: "tiles" }, all)), update() {} };
}

// An image cut into its patches, with a gap between them
function cut(viewer, result) {
  const [rows, columns] = result.grid;
  const canvas = make("canvas", { class: "matrix", role: "img", "aria-label": result.title });
  createImageBitmap(viewer.payload.file(result.file)).then((image) => {
    const zoom = Math.max(1, Math.round(448 / image.width));
    const [wide, high] = [(image.width / columns) * zoom, (image.height / rows) * zoom], gap = Math.max(1, Math.round(0.1 * wide));
    canvas.width = columns * (wide + gap) - gap;
    canvas.height = rows * (high + gap) - gap;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    for (const row of count(rows)) for (const column of count(columns)) context.drawImage(image, (column * wide) / zoom, (row * high) / zoom, wide / zoom, high / zoom, column * (wide + gap), row * (high + gap), wide, high);
  });
  return make("div", {}, make("p", { class: "key" }, result.title), canvas);
}

// The class of each pixel in colours over the image, and what the colours mean
function mask(viewer, result) {
  const key = () => result.legend.map(([name, colour, share]) => make("span", { class: "class-key" }, swatch(colour), `${name} ${percent(share)}`));
  const under = key().slice(0, UNDER);
  let layer = null;
  createImageBitmap(viewer.payload.file(result.file)).then((image) => {
    layer = image;
    viewer.state.set({ tick: performance.now() });
  });
  const more = result.legend.length > UNDER ? make("p", { class: "legend-line" }, key()) : null;
  return { element: make("div", {}, make("p", { class: "key" }, `${result.title}: ${result.legend.length} of ${viewer.header.classNames.length} classes`), more), overlay: (values) => ({ values: null, layer, legend: under, query: viewer.pointed(values) }), update() {} };
}

function table(viewer, result) {
  const rows = result.rows.map(([label, text]) => make("tr", {}, make("th", { scope: "row" }, label), make("td", {}, text)));
  return { element: make("div", {}, make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": result.title }, make("table", { class: "plain" }, rows))), update() {} };
}

export const KINDS = { map, matrix: drawMatrix, dots: drawDots, bars, steps, removal, lines: drawLines, tiles, crop, mask, diagram, story: (viewer, result) => new Story(viewer, result, KINDS), table };
