// The page: reads the server's state each second and shows it; runs the chosen model.

import { byId, element } from "./dom.js";
import { fill } from "./form.js";
import { History, keyOf } from "./history.js";
import { Models, placementText } from "./models.js";
import { shapeText, shown, shownBytes, shownMs } from "./numbers.js";
import { outputElement } from "./outputs.js";
import { plot } from "./plots.js";
import { infer, readAbout, readState, useToken } from "./server.js";

const EACH_MS = 1000;
const history = new History();
const models = new Models(byId("models"), choose);
const plots = [
  plot("Latency", [["p50", "p50"], ["p99", "p99"]], shownMs),
  plot("Requests a second", [["now", "rate"]], (value) => shown(Number((value ?? 0).toPrecision(3)))),
  plot("Queue", [["waiting", "waiting"], ["running", "running"]], (value) => shown(value ?? 0)),
];
let state = { ready: false, models: [] };
let chosen = null;
let formOf = "";
let timer = 0;

byId("plots").append(...plots.map((each) => each.figure));

function choose(key) {
  chosen = key;
  show();
}

function say(text, kind) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
  status.dataset.kind = kind;
}

async function look() {
  clearTimeout(timer);
  try {
    state = await readState();
    history.add(state.models, performance.now());
    say(state.ready ? "ready" : "not ready", state.ready ? "good" : "bad");
    show();
  } catch (error) {
    if (error.status === 401) {
      askToken("the server does not know this token");
      return;
    }
    say("no answer from the server", "bad");
  }
  timer = setTimeout(look, EACH_MS);
}

function show() {
  const ready = state.models.filter((model) => model.latency_ms);
  if (!ready.some((model) => keyOf(model) === chosen)) chosen = ready.length ? keyOf(ready[0]) : null;
  models.show(state.models, chosen, history);
  const model = ready.find((each) => keyOf(each) === chosen);
  for (const id of ["model", "live", "answer"]) byId(id).hidden = !model;
  if (!model) return;
  for (const each of plots) each.draw(history.of(chosen), performance.now());
  showModel(model);
}

function showModel(model) {
  const signature = JSON.stringify([chosen, model.inputs, model.outputs, model.placement]);
  if (signature === formOf) return; // what the user has typed stays
  formOf = signature;
  byId("model-title").textContent = model.name;
  const line = (title, text) => [element("dt", {}, title), element("dd", {}, text)];
  const specs = (tensors) =>
    element("ul", {}, ...tensors.map(({ name, datatype, shape }) =>
      element("li", {}, element("b", {}, name), ` ${datatype} ${shapeText(shape)}`)));
  byId("facts").replaceChildren(
    ...line("version", `${model.version} (${model.platform})`),
    ...line("inputs", specs(model.inputs)),
    ...line("outputs", specs(model.outputs)),
    ...line("runs on", placementText(model.placement)),
  );
  byId("answer-body").replaceChildren(element("p", { class: "took" }, "The outputs of a run come here."));
  fill(byId("run"), model, (inputs, times) => run(model, inputs, times));
}

async function run(model, inputs, times) {
  const took = [];
  let answer;
  for (let count = 0; count < times; count++) {
    answer = await infer(model.name, model.version, inputs);
    took.push(answer.milliseconds);
  }
  if (chosen !== keyOf(model)) return; // the user has gone on to another
  const median = took.sort((a, b) => a - b)[times >> 1];
  const time = times > 1 ? `${times} requests, median ${shownMs(median)}` : shownMs(median);
  const size = `${shownBytes(answer.sent)} there, ${shownBytes(answer.received)} back`;
  byId("answer-body").replaceChildren(
    element("p", { class: "took" }, element("b", {}, time), ` in this browser; ${size}`),
    ...answer.outputs.map((output) => outputElement(output, model.labels?.[output.name])),
  );
  byId("answer").scrollIntoView({ block: "nearest" });
}

function askToken(text) {
  say(text, "bad");
  byId("token").hidden = false;
  byId("token-value").focus();
}

byId("token").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token-value").value.trim());
  look();
});
for (const kind of ["dragover", "drop"]) {
  // A file that misses its field must not replace the page.
  addEventListener(kind, (event) => event.preventDefault());
}
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : look()));

const about = await readAbout();
byId("version").textContent = about.version;
byId("links").hidden = about.needs_token; // a link carries no token
if (about.needs_token) askToken("the server asks for a token");
else await look();
