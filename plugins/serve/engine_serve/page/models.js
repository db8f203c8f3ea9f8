// The table of models: a line for each version, which is updated in place.

import { element } from "./dom.js";
import { keyOf } from "./history.js";
import { shown, shownMs } from "./numbers.js";

const COLUMNS = [
  ["model", "Model"], ["version", "Version"], ["state", "State"], ["where", "Runs on"],
  ["rate", "Requests/s"], ["p50", "p50"], ["p99", "p99"], ["queue", "Waiting"],
];

/** Return where a version runs, as text. */
export function placementText(placement) {
  return (placement ?? [])
    .map(({ device, provider, backend, nodes }) =>
      `${device} (${provider || backend}): ${nodes} ${nodes === 1 ? "node" : "nodes"}`)
    .join(", ");
}

const devices = (placement) =>
  [...new Set((placement ?? []).map(({ device, backend }) => device || backend))].join(", ");

/** A table in `place`. choose: called with a version that the user chose. */
export class Models {
  #rows = new Map();
  #place;
  #choose;

  constructor(place, choose) {
    this.#place = place;
    this.#choose = choose;
  }

  /** Show models; chosen: the key of one. history: of all. */
  show(models, chosen, history) {
    const keys = models.map(keyOf);
    if (keys.join() !== [...this.#rows.keys()].join()) this.#build(models);
    for (const model of models) {
      const key = keyOf(model);
      const { cells, button } = this.#rows.get(key);
      const last = history.of(key).at(-1);
      const isReady = model.state === "READY";
      button.disabled = !isReady;
      if (key === chosen) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      write(cells.version, model.version ?? "–");
      write(cells.state, isReady ? "ready" : `${model.state.toLowerCase()}: ${model.reason ?? ""}`.replace(/: $/, ""));
      cells.state.dataset.state = model.state;
      write(cells.where, devices(model.placement) || "–");
      write(cells.rate, last ? shown(Number(last.rate.toPrecision(3))) : "–");
      write(cells.p50, shownMs(last?.p50));
      write(cells.p99, shownMs(last?.p99));
      write(cells.queue, isReady ? String(model.waiting) : "–");
    }
  }

  #build(models) {
    this.#rows.clear();
    const head = element("tr", {}, ...COLUMNS.map(([, title]) => element("th", { scope: "col" }, title)));
    const body = element("tbody");
    for (const model of models) {
      const button = element("button", { type: "button", on: { click: () => this.#choose(keyOf(model)) } }, model.name);
      const cells = Object.fromEntries(
        COLUMNS.map(([key, title]) => [key, element("td", { class: key, "data-title": title })]));
      cells.model.append(button);
      body.append(element("tr", {}, ...Object.values(cells)));
      this.#rows.set(keyOf(model), { cells, button });
    }
    this.#place.replaceChildren(element("table", {}, element("thead", {}, head), body));
    if (!models.length) this.#place.replaceChildren(element("p", {}, "The server has no models."));
  }
}

function write(cell, text) {
  if (cell.textContent !== text) cell.textContent = text;
}
