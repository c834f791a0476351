// The tabs of a viewer: each says whether the payload has what it needs, what the image shows, and what stands beside
// it. `build` makes the elements once; its `update` is called whenever something else is looked at.

import { cells, dots, lines, matrix, ranking, scale } from "./charts.js";
import { robust } from "./colours.js";
import { make, number, percent } from "./dom.js";
import { imageOf } from "./mosaic.js";
import { slice } from "./payload.js";
import { fill, thumbnail } from "./stage.js";

const patchesOf = (viewer, row) => row.subarray(viewer.prefix);

function sentences(viewer, ...names) {
  return names
    .filter((name) => viewer.header.views[name])
    .map((name) => {
      const { title, read, beware } = viewer.header.views[name];
      return make("div", { class: "sentences" }, make("h3", {}, title), make("p", {}, read), make("p", { class: "beware" }, beware));
    });
}

function slider(label, { min = 0, max, value, oninput, text }) {
  const shown = make("output", {}, text(value));
  const input = make("input", { type: "range", min, max, step: 1, value, "aria-label": label });
  input.addEventListener("input", () => oninput(Number(input.value)));
  const element = make("label", { class: "slider" }, make("span", {}, label), input, shown);
  return { element, update: (now) => { input.value = now; shown.textContent = text(now); } };
}

function blocks(viewer) {
  return slider("Block", { max: viewer.depth - 1, value: 0, oninput: (layer) => viewer.state.set({ layer }), text: (layer) => `${layer} of ${viewer.depth - 1}` });
}

const attention = {
  name: "attention",
  title: "Attention",
  has: () => true,
  stage(viewer, values) {
    const row = viewer.row(values.layer, values.head, viewer.query(values));
    const heat = patchesOf(viewer, row);
    return { values: heat, peak: robust(heat), query: viewer.query(values) };
  },
  build(viewer) {
    const { state, depth, heads, rows, columns } = viewer;
    const block = blocks(viewer);
    const play = make("button", { class: "play", "aria-pressed": "false", onclick: () => viewer.play() }, "Play");
    viewer.playButton = play;
    const modes = ["mean", "max"].map((mode) => make("button", { class: "chip", onclick: () => state.set({ head: mode }) }, mode === "mean" ? "Mean of heads" : "Strongest head"));
    const ask = make("button", { class: "chip", onclick: () => state.set({ query: null, hover: null }) }, viewer.header.model.readsMean ? "All patches ask" : "Class token asks");
    const ramp = make("div");
    const each = [...Array(heads).keys()].map((head) => {
      const canvas = thumbnail(columns, rows);
      const button = make("button", { class: "tile", "aria-label": `head ${head}`, onclick: () => state.set({ head: state.values.head === head ? "mean" : head }) }, canvas, make("span", {}, `head ${head}`));
      return { canvas, button };
    });
    const layers = [...Array(depth).keys()].map((layer) => {
      const canvas = thumbnail(columns, rows);
      return { canvas, button: make("button", { class: "tile", "aria-label": `block ${layer}`, onclick: () => state.set({ layer }) }, canvas, make("span", {}, String(layer))) };
    });
    const element = make(
      "div", {},
      make("div", { class: "controls" }, block.element, play, make("div", { class: "chips", role: "group", "aria-label": "How heads are joined" }, ...modes), ask),
      ramp,
      make("h3", { class: "sub" }, "Every head of this block"),
      make("div", { class: "tiles", role: "group", "aria-label": "Heads" }, each.map((one) => one.button)),
      make("h3", { class: "sub" }, "Every block"),
      make("div", { class: "tiles narrow", role: "group", "aria-label": "Blocks" }, layers.map((one) => one.button)),
      sentences(viewer, "attention-rows", "attention-maps"),
    );
    const spare = new Float32Array(viewer.tokens);
    return {
      element,
      update(values) {
        const query = viewer.query(values);
        block.update(values.layer);
        modes.forEach((button, i) => button.setAttribute("aria-pressed", String(values.head === ["mean", "max"][i])));
        ask.setAttribute("aria-pressed", String(query === null || query < viewer.prefix));
        each.forEach(({ canvas, button }, head) => {
          const heat = patchesOf(viewer, viewer.row(values.layer, head, query, spare));
          fill(canvas, heat, { peak: robust(heat) });
          button.setAttribute("aria-pressed", String(values.head === head));
          button.classList.toggle("gone", viewer.off.has(`${values.layer}.${head}`));
        });
        layers.forEach(({ canvas, button }, layer) => {
          const heat = patchesOf(viewer, viewer.row(layer, values.head, query, spare));
          fill(canvas, heat, { peak: robust(heat) });
          button.setAttribute("aria-pressed", String(values.layer === layer));
        });
        const peak = robust(patchesOf(viewer, viewer.row(values.layer, values.head, query, spare)));
        ramp.replaceChildren(scale("heat", "0", `${percent(peak)} or more`));
      },
    };
  },
};

const MAPS = {
  relevance: ["relevance", "Relevance"],
  "gradient × attention": ["gradient-attention", "Gradient × attention"],
  CAM: ["cam", "CAM"],
  "integrated gradients": ["integrated-gradients", "Integrated gradients"],
};

const relevance = {
  name: "relevance",
  title: "Relevance",
  has: (payload) => payload.has("map/relevance"),
  stage(viewer, values) {
    const { map, place } = relevance.chosen(viewer, values);
    const signed = map === "integrated gradients";
    const found = slice(viewer.payload, `map/${map}`, place);
    return { values: found, kind: signed ? "signed" : "heat", query: viewer.pointed(values) };
  },
  chosen(viewer, values) {
    const explained = viewer.header.explained;
    const index = explained.findIndex((each) => each.index === (values.class ?? explained[0].index));
    const map = values.map in MAPS ? values.map : "relevance";
    return { map, place: map === "relevance" ? Math.max(0, index) : 0, index: Math.max(0, index) };
  },
  build(viewer) {
    const { state, header } = viewer;
    const classes = header.explained.map((each) => make("button", { class: "chip", onclick: () => state.set({ class: each.index, map: "relevance" }) }, each.label));
    const kinds = Object.entries(MAPS).map(([name, [, title]]) => make("button", { class: "chip", onclick: () => state.set({ map: name }) }, title));
    const said = make("div");
    const element = make("div", {}, make("h3", { class: "sub" }, "For which class"), make("div", { class: "chips", role: "group", "aria-label": "Class" }, classes), make("h3", { class: "sub" }, "By which method"), make("div", { class: "chips", role: "group", "aria-label": "Method" }, kinds), said);
    let last = null;
    return {
      element,
      update(values) {
        const { map, index } = relevance.chosen(viewer, values);
        classes.forEach((button, i) => {
          button.setAttribute("aria-pressed", String(i === (map === "relevance" ? index : 0)));
          button.disabled = map !== "relevance" && i > 0;
        });
        kinds.forEach((button, i) => button.setAttribute("aria-pressed", String(Object.keys(MAPS)[i] === map)));
        if (last !== map) said.replaceChildren(map === "integrated gradients" ? scale("signed", "against", "for") : scale("heat", "none", "most"), ...sentences(viewer, MAPS[map][0]));
        last = map;
      },
    };
  },
};

const rollout = {
  name: "rollout",
  title: "Rollout",
  has: (payload) => payload.has("rollout"),
  stage(viewer, values) {
    const query = viewer.query(values);
    const row = query === null ? viewer.meanRow("rollout") : slice(viewer.payload, "rollout", query);
    const heat = patchesOf(viewer, row);
    return { values: heat, peak: robust(heat), low: Math.min(...heat), query }; // all patches are alike but for a little
  },
  build(viewer) {
    const ramp = make("div");
    return {
      element: make("div", {}, ramp, sentences(viewer, "rollout")),
      update() {
        const { low, peak } = viewer.drawn;
        ramp.replaceChildren(scale("heat", percent(low), `${percent(peak)} or more`));
      },
    };
  },
};

const positions = {
  name: "positions",
  title: "Positions",
  has: (payload) => payload.has("positions"),
  stage(viewer, values) {
    const query = viewer.query(values);
    const place = query === null || query < viewer.prefix ? Math.floor(viewer.rows / 2) * viewer.columns + Math.floor(viewer.columns / 2) : query - viewer.prefix;
    return { values: slice(viewer.payload, "positions", place), kind: "signed", peak: 1, query: place + viewer.prefix };
  },
  build: (viewer) => ({ element: make("div", {}, scale("signed", "−1", "cosine 1"), sentences(viewer, "positions")), update() {} }),
};

const filters = {
  name: "filters",
  title: "Filters",
  has: (payload) => payload.has("filters"),
  stage: (viewer, values) => ({ values: null, query: viewer.pointed(values) }),
  build(viewer) {
    const found = viewer.payload.array("filters");
    const share = viewer.payload.array("filters.share").data;
    const [count, height, width] = found.shape;
    const tiles = [...Array(count).keys()].map((i) => {
      const canvas = make("canvas", { width, height, class: "small", role: "img", "aria-label": `component ${i + 1}, ${percent(share[i])} of the variance` });
      canvas.getContext("2d").putImageData(imageOf(found, i), 0, 0);
      return make("div", { class: "tile" }, canvas, make("span", {}, percent(share[i])));
    });
    return { element: make("div", {}, make("div", { class: "tiles" }, tiles), sentences(viewer, "filters", "patches")), update() {} };
  },
};

const tokens = {
  name: "tokens",
  title: "Tokens",
  has: (payload) => payload.has("colours"),
  stage(viewer, values) {
    const count = viewer.rows * viewer.columns;
    if (values.map === "norms") return { values: slice(viewer.payload, "norms", values.layer), query: viewer.pointed(values) };
    const { data } = viewer.payload.array("colours");
    return { colours: data.subarray(3 * count * values.layer, 3 * count * (values.layer + 1)), query: viewer.pointed(values) };
  },
  build(viewer) {
    const block = blocks(viewer);
    const kinds = [["", "As colours"], ["norms", "By length"]].map(([map, title]) => make("button", { class: "chip", onclick: () => viewer.state.set({ map: map || "colours" }) }, title));
    return {
      element: make("div", {}, make("div", { class: "controls" }, block.element, make("div", { class: "chips", role: "group", "aria-label": "Shown" }, kinds)), sentences(viewer, "token-colours", "token-norms")),
      update(values) {
        block.update(values.layer);
        kinds.forEach((button, i) => button.setAttribute("aria-pressed", String((values.map === "norms") === (i === 1))));
      },
    };
  },
};

const distance = {
  name: "distance",
  title: "Distance",
  has: (payload) => payload.has("distance"),
  stage: attention.stage,
  build(viewer) {
    const { payload, depth, heads, state } = viewer;
    const far = make("div"), sharp = make("div");
    const choose = (layer, head) => state.set({ layer, head });
    return {
      element: make("div", {}, far, sentences(viewer, "distance"), sharp, sentences(viewer, "entropy")),
      update(values) {
        const key = `${values.layer}.${values.head}`;
        if (key === this.last) return;
        this.last = key;
        const chosen = { layer: values.layer, head: values.head };
        far.replaceChildren(dots(payload.array("distance").data, depth, heads, { title: "How far heads look, in pixels, by block", unit: " px", chosen, choose }));
        sharp.replaceChildren(dots(payload.array("entropy").data, depth, heads, { title: "Entropy of attention by block", ceiling: Math.log(viewer.tokens), chosen, choose }));
      },
    };
  },
};

const headsTab = {
  name: "heads",
  title: "Heads",
  has: (payload) => payload.has("importance"),
  stage: attention.stage,
  build(viewer) {
    const { payload, depth, heads, state, header } = viewer;
    const live = viewer.source.ablate !== null;
    const size = depth * heads;
    const grid = make("div"), list = make("div"), news = make("p", { class: "news", role: "status" });
    const toggle = (layer, head) => {
      if (live) viewer.toggle(layer, head);
      state.set({ layer, head });
    };
    const clear = make("button", { class: "chip", onclick: () => viewer.clear() }, "All heads on");
    const effect = payload.has("ablation") ? payload.array("ablation").data : null;
    if (effect) {
      const order = [...effect.keys()].sort((a, b) => Math.abs(effect[b]) - Math.abs(effect[a])).slice(0, 12);
      list.append(make("h3", { class: "sub" }, `Switched off, a head changes the logit of ${header.explained[0].label}`), ranking(order.map((i) => ({ name: `block ${Math.floor(i / heads)}, head ${i % heads}`, value: effect[i], onclick: () => state.set({ layer: Math.floor(i / heads), head: i % heads }) })), { title: "Heads by their effect", unit: "±" }), ...sentences(viewer, "ablation"));
    }
    return {
      element: make("div", {}, live ? make("p", {}, "Click a head to switch it off, and see what the model then says.") : null, live ? clear : null, live ? news : null, grid, sentences(viewer, "importance"), list),
      update(values) {
        const explained = header.explained.findIndex((each) => each.index === (values.class ?? header.explained[0].index));
        const place = Math.max(0, explained);
        const key = [values.layer, values.head, place, [...viewer.off].join()].join("/");
        if (key === this.last) return;
        this.last = key;
        const label = header.explained[place].label;
        const found = payload.array("importance").data.subarray(place * size, (place + 1) * size);
        const title = `How much the logit of ${label} hangs on each head (rows: blocks, columns: heads)`;
        grid.replaceChildren(make("p", { class: "key" }, title), cells(found, depth, heads, { title, choose: toggle, chosen: { layer: values.layer, head: values.head }, off: live ? viewer.off : null, describe: (layer, head, value) => `block ${layer}, head ${head}: ${number(value)}` }));
        news.textContent = viewer.news;
      },
    };
  },
};

const lens = {
  name: "lens",
  title: "Logit lens",
  has: (payload) => payload.has("lens"),
  stage: attention.stage,
  build(viewer) {
    const { payload, header, state } = viewer;
    const steps = header.lens.length;
    const chart = make("div");
    const table = make("table", { class: "plain" }, make("tr", {}, make("th", { scope: "col" }, "after"), make("th", { scope: "col" }, "it would say"), make("th", { scope: "col" }, "how sure")));
    header.lens.forEach(({ label, probability }, i) => table.append(make("tr", {}, make("th", { scope: "row" }, i ? make("button", { class: "link", onclick: () => state.set({ layer: i - 1 }) }, `block ${i - 1}`) : "embedding"), make("td", {}, label), make("td", {}, percent(probability)))));
    return {
      element: make("div", {}, chart, table, sentences(viewer, "lens")),
      update(values) {
        const place = Math.max(0, header.explained.findIndex((each) => each.index === (values.class ?? header.explained[0].index)));
        if (place === this.last) return;
        this.last = place;
        const found = payload.array("lens").data;
        const series = header.explained.map((each, i) => ({ name: each.label, values: found.subarray(i * steps, (i + 1) * steps), quiet: i !== place, strong: i === place }));
        chart.replaceChildren(make("p", { class: "key" }, `Probability of ${header.explained[place].label} after each block; thin: the other likely classes`), lines(series, { title: `Probability of ${header.explained[place].label} after each block`, label: "after block", names: ["in", ...Array(steps - 1).keys()].map(String) }));
      },
    };
  },
};

const matrices = {
  name: "matrix",
  title: "Matrix",
  has: (payload) => payload.header.whole,
  stage: attention.stage,
  build(viewer) {
    const { payload, tokens: count, depth, heads } = viewer;
    const block = blocks(viewer);
    const whole = make("div");
    const similar = matrix(payload.array("similar").data, depth, { title: "Similarity of blocks", peak: 1, down: "block", across: "block" });
    return {
      element: make("div", {}, make("div", { class: "controls" }, block.element), whole, sentences(viewer, "attention-matrix"), make("h3", { class: "sub" }, "Similarity of blocks"), similar, sentences(viewer, "layers")),
      update(values) {
        const key = `${values.layer}.${values.head}`;
        block.update(values.layer);
        if (key === this.last) return;
        this.last = key;
        const found = new Float32Array(count * count);
        for (let query = 0; query < count; query++) found.set(viewer.row(values.layer, values.head, query), query * count);
        for (let i = 0; i < found.length; i++) found[i] = Math.max(0, 1 + Math.log10(Math.max(found[i], 1e-4)) / 4); // four decades
        const name = typeof values.head === "number" ? `head ${values.head}` : values.head === "max" ? "strongest head" : "mean of heads";
        whole.replaceChildren(make("p", { class: "key" }, `Block ${values.layer}, ${name}: a row for each token that asks; bright is much, on a scale of four powers of ten`), matrix(found, count, { title: `Attention matrix of block ${values.layer}, ${name}`, peak: 1, down: "asks", across: "is looked at" }));
      },
    };
  },
};

const trust = {
  name: "trust",
  title: "Trust",
  has: (payload) => Boolean(payload.header.trust),
  stage: relevance.stage,
  build(viewer) {
    const { payload, header } = viewer;
    const maps = header.trust;
    const chart = (name) => {
      const { data, shape } = payload.array(name);
      return lines(maps.map((each, i) => ({ name: each.name, values: data.subarray(i * shape[1], (i + 1) * shape[1]), quiet: each.blind, dashed: each.blind, strong: each.name === "relevance" })), { title: `${name} curves`, label: name === "deletion" ? "patches taken away" : "patches put in", names: [...Array(shape[1]).keys()].map((i) => percent(i / (shape[1] - 1))) });
    };
    const table = make("table", { class: "plain" }, make("tr", {}, ...["map", "deletion (low is good)", "insertion (high is good)", "like that of fresh weights (0 is good)"].map((text) => make("th", { scope: "col" }, text))));
    for (const each of maps) table.append(make("tr", {}, make("th", { scope: "row" }, each.name), make("td", {}, number(each.deletion)), make("td", {}, number(each.insertion)), make("td", {}, each.alike === null ? "" : number(each.alike))));
    return { element: make("div", {}, make("p", { class: "key" }, "Bold: relevance. Dashed: maps that know nothing of the model."), make("h3", { class: "sub" }, "Deletion"), chart("deletion"), make("h3", { class: "sub" }, "Insertion"), chart("insertion"), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Areas" }, table), sentences(viewer, "trust")), update() {} };
  },
};

const model = {
  name: "model",
  title: "Model",
  has: () => true,
  stage: (viewer, values) => ({ values: null, query: viewer.pointed(values) }),
  build(viewer) {
    const table = (title, rows) => make("div", { class: `scroll ${title.toLowerCase()}`, tabindex: "0", role: "region", "aria-label": title }, make("table", { class: "plain" }, rows.map(([label, text]) => make("tr", {}, make("th", { scope: "row" }, label), make("td", {}, text)))));
    return { element: make("div", {}, make("h3", { class: "sub" }, "Shapes at each step"), table("Shapes", viewer.header.shapes), make("h3", { class: "sub" }, "About the model"), table("About", viewer.header.about)), update() {} };
  },
};

export const TABS = [attention, relevance, rollout, headsTab, lens, positions, filters, tokens, distance, matrices, trust, model];
