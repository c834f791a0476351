// The model as boxes and arrows: its parts from image to answer, and one block enlarged, pre-norm beside post-norm; and the
// image as it came beside what the model gets.

import { make } from "./dom.js";

const BOX = 34, STEP = 50, TOP = 36;

function box(svg, x, y, width, { name, detail, shape }, { kind = "" } = {}) {
  svg.append(make("rect", { x, y, width, height: BOX, rx: 6, class: `part ${kind}` }));
  svg.append(make("text", { x: x + 9, y: y + (detail ? 14 : 21), class: "part-name" }, name));
  if (detail) svg.append(make("text", { x: x + 9, y: y + 27, class: "part-detail" }, detail));
  if (shape) svg.append(make("text", { x: x + width - 8, y: y + (detail ? 14 : 21), "text-anchor": "end", class: "part-shape" }, shape));
}

function arrow(svg, points, kind = "") {
  const [[x0, y0], [x1, y1]] = points.slice(-2);
  const length = Math.hypot(x1 - x0, y1 - y0) || 1, [dx, dy] = [(x1 - x0) / length, (y1 - y0) / length];
  svg.append(make("polyline", { points: points.map((point) => point.join()).join(" "), class: `arrow ${kind}` }));
  svg.append(make("path", { d: `M ${x1} ${y1} L ${x1 - 7 * dx + 3.5 * dy} ${y1 - 7 * dy - 3.5 * dx} L ${x1 - 7 * dx - 3.5 * dy} ${y1 - 7 * dy + 3.5 * dx} Z`, class: `tip ${kind}` }));
}

// parts one below the other; a jump leads past those between its ends; "+" is where the two meet again
function column(parts, jumps, width, title, kind = "") {
  const right = jumps.length ? 30 : 2, tall = TOP + parts.length * STEP;
  const svg = make("svg", { viewBox: `0 0 ${width + right} ${tall}`, class: "diagram", role: "img", "aria-label": `${title}: ${parts.map((part) => (part.name === "+" ? "add" : `${part.name} ${part.detail} ${part.shape}`.trim())).join(", then ")}` });
  svg.append(make("text", { x: 0, y: 13, class: "diagram-title" }, title));
  parts.forEach((part, i) => {
    const y = TOP + i * STEP;
    if (part.name === "+") svg.append(make("text", { x: width / 2, y: y + BOX / 2 + 7, "text-anchor": "middle", class: "plus" }, "+"));
    else box(svg, 1, y, width - 2, part, { kind: part.name.endsWith("blocks") ? "strong" : kind });
    if (i + 1 < parts.length) arrow(svg, [[width / 2, y + BOX + 1], [width / 2, y + STEP - 1]]);
  });
  for (const [begin, end] of jumps) {
    const [top, bottom] = [TOP + begin * STEP - 9, TOP + end * STEP + BOX / 2];
    arrow(svg, [[width / 2, top], [width + 14, top], [width + 14, bottom], [width / 2 + 10, bottom]], "jump");
  }
  return svg;
}

export function diagram(viewer, result) {
  const [norm, attention, second, mlp] = result.block.map((part) => ({ ...part, shape: "" }));
  const plus = { name: "+", detail: "", shape: "" };
  const plain = (part) => ({ ...part, detail: "" });
  const element = make("div", {}, make("p", { class: "key" }, result.title), make("div", { class: "diagrams" },
    column(result.whole, [], 300, "This model"),
    column([norm, attention, plus, second, mlp, plus], [[0, 2], [3, 5]], 190, "A block: pre-norm"),
    column([plain(attention), plus, plain(norm), plain(mlp), plus, plain(second)], [[0, 1], [3, 4]], 150, "In 2017: post-norm", "faint")));
  return { element, update() {} };
}

// The image as it came, what the model gets outlined; beside it what the model gets
export function crop(viewer, result) {
  const canvas = make("canvas", { class: "photo", role: "img", "aria-label": `${result.captions[0]}; the outlined part reaches the model` });
  const seen = make("canvas", { class: "photo crisp", role: "img", "aria-label": result.captions[1] });
  const show = async (target, file) => {
    const image = await createImageBitmap(viewer.payload.file(file));
    [target.width, target.height] = [image.width, image.height];
    target.getContext("2d").drawImage(image, 0, 0);
    return image;
  };
  show(seen, result.seen);
  show(canvas, result.image).then((image) => {
    const context = canvas.getContext("2d"), [left, top, right, bottom] = result.box;
    const edges = [left * image.width, top * image.height, (right - left) * image.width, (bottom - top) * image.height];
    context.fillStyle = "rgb(0 0 0 / .5)";
    context.beginPath();
    context.rect(0, 0, image.width, image.height);
    context.rect(...edges);
    context.fill("evenodd"); // what the model does not see
    context.strokeStyle = "#fff";
    context.lineWidth = Math.max(2, image.width / 200);
    context.strokeRect(edges[0] + 1, edges[1] + 1, edges[2] - 2, edges[3] - 2);
  });
  const figure = (drawn, text) => make("figure", {}, drawn, make("figcaption", {}, text));
  return { element: make("div", {}, make("p", { class: "key" }, result.title), make("div", { class: "crops" }, figure(canvas, result.captions[0]), figure(seen, result.captions[1]))), update() {} };
}
