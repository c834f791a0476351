// What openapi.json says, to be read by people.

import { make } from "./dom.js";

const { paths } = await (await fetch("/openapi.json")).json();
for (const [path, methods] of Object.entries(paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const rows = (operation.parameters ?? []).map((each) => make("tr", {}, make("th", { scope: "row" }, each.name), make("td", {}, each.required ? "required" : "optional"), make("td", {}, each.description ?? "")));
    document.getElementById("paths").append(
      make("section", { class: "sentences" }, make("h3", {}, `${method.toUpperCase()} ${path}`), make("p", {}, operation.description ?? operation.summary ?? ""), rows.length ? make("table", { class: "plain" }, rows) : null, make("p", { class: "beware" }, `Answers: ${Object.keys(operation.responses).join(", ")}`)),
    );
  }
}
document.documentElement.dataset.ready = "api";
