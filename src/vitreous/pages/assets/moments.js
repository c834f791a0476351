// Snapshots of a model in training: for each view, how one moment is drawn. `sketch` makes the elements once, at full
// size or as a small panel; its `update(i)` draws array number i of the view.

import { dots, scale } from "./charts.js";
import { paint } from "./colours.js";
import { make, percent } from "./dom.js";
import { Mosaic, columnsFor, enlarge, imageOf } from "./mosaic.js";
import { slice } from "./payload.js";
import { overlay } from "./stage.js";

function framed(context, { x, y, width, height }) {
  context.strokeStyle = "rgb(128 128 128 / .45)";
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
}

const positions = {
  panel: "9rem",
  widest: "34rem",
  sketch(payload, small) {
    const [rows, columns, high, wide] = payload.array("positions/0").shape;
    const mosaic = new Mosaic({ rows, columns, ratio: high / wide, label: small ? null : "Similarity of position embeddings: a tile for each patch, red alike, blue opposite" });
    const update = (number) => mosaic.draw((context, i, box) => {
      enlarge(context, paint(slice(payload, `positions/${number}`, i), wide, { kind: "signed", peak: 1 }), box);
      framed(context, box);
    });
    return { element: make("div", { class: "drawn" }, mosaic.canvas), after: small ? null : scale("signed", "opposite", "alike"), mosaic, update };
  },
};

const filters = {
  panel: "10rem",
  widest: "40rem",
  sketch(payload, small) {
    const [count, high, wide] = payload.array("filters/0").shape;
    const columns = columnsFor(count);
    const mosaic = new Mosaic({ rows: Math.ceil(count / columns), columns, ratio: high / wide, label: small ? null : `The first ${count} filters of the first layer, the strongest first` });
    const update = (number) => mosaic.draw((context, i, box) => {
      if (i >= count) return;
      enlarge(context, imageOf(payload.array(`filters/${number}`), i), box);
      framed(context, box);
    });
    const width = small ? null : { "--widest": `${Math.min(40, 5 * columns)}rem` }; // a few filters are no posters
    return { element: make("div", { class: "drawn", style: width ?? {} }, mosaic.canvas), after: null, mosaic, update };
  },
};

const distance = {
  panel: "13rem",
  widest: "40rem",
  sketch(payload, small) {
    const element = make("div", { class: "drawn" });
    const update = (number) => {
      const { data, shape } = payload.array(`distance/${number}`);
      element.replaceChildren(dots(data, shape[0], shape[1], { title: "Attention distance of heads in pixels, by block", unit: " px", limits: payload.header.reach, small }));
      if (small) element.firstChild.setAttribute("aria-hidden", "true");
    };
    return { element, after: null, update };
  },
};

const attention = {
  panel: "9rem",
  widest: "58rem",
  sketch(payload, small, options) {
    const images = payload.array("images");
    const [count, high, wide] = images.shape;
    const { labels, peak } = payload.header;
    const [, rows, columns] = payload.array("attention/0").shape;
    const canvases = [...Array(count).keys()].map((i) => {
      const canvas = new OffscreenCanvas(wide, high);
      canvas.getContext("2d").putImageData(imageOf(images, i), 0, 0);
      return canvas;
    });
    const heat = new OffscreenCanvas(columns, rows);
    const across = small ? Math.min(count, 4) : count;
    const mosaics = small
      ? [new Mosaic({ rows: Math.ceil(count / across), columns: across, ratio: high / wide })]
      : canvases.map((_, i) => new Mosaic({ rows: 1, columns: 1, ratio: high / wide, label: `${labels[i] || `image ${i + 1}`}, and the attention of the class token` }));
    let shown = null;
    const update = (number) => {
      shown = number;
      mosaics.forEach((mosaic, index) => mosaic.draw((context, i, box) => {
        const which = small ? i : index;
        if (which >= count) return;
        overlay(context, box, canvases[which], heat, { values: slice(payload, `attention/${number}`, which), columns, peak, opacity: options.opacity });
      }));
    };
    if (small) return { element: make("div", { class: "drawn" }, mosaics[0].canvas), after: null, update };
    const input = make("input", { type: "range", min: 0, max: 100, value: 100 * options.opacity, "aria-label": "Opacity of the heat map" });
    input.addEventListener("input", () => {
      options.opacity = Number(input.value) / 100;
      if (shown !== null) update(shown);
    });
    const element = make("div", { class: "drawn images" }, mosaics.map((mosaic, i) => make("figure", {}, mosaic.canvas, labels[i] ? make("figcaption", {}, labels[i]) : null)));
    const after = make("div", { class: "controls" }, scale("tint", "0", `${percent(peak)} or more of the attention`), make("label", { class: "slider" }, make("span", {}, "Colours"), input));
    return { element, after, mosaic: mosaics[0], update };
  },
};

export const MOMENTS = { positions, filters, distance, attention };
