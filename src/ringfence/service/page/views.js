// What is shown of one box or one run.

import { bytes, clock, el, keyed, kindOf, pill, shown, shownLines, span, word } from "./parts.js";
import { draw, graph } from "./graph.js";
import { ask, asBytes, follow, json, post } from "./stream.js";

export function facts(rows) {
  return el("dl", { class: "facts" }, rows.filter((row) => row[1] !== null && row[1] !== undefined && row[1] !== "")
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, shown(value)))));
}

function failed(panel, error) {
  panel.replaceChildren(el("p", { class: "empty" }, shown(error.message)));
}

// ---- a run's output, as it comes

const MOST_PIECES = 4000;

export function output(panel, run, signal, ended) {
  const text = el("pre", { "aria-live": "off", "aria-label": "Output" });
  const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  panel.replaceChildren(text);
  follow(`/v1/runs/${run.id}/events`, (name, data) => {
    if (name === "output") {
      const low = panel.scrollHeight - panel.scrollTop - panel.clientHeight < 40;
      const decoder = decoders[data.stream] || decoders.stdout;
      text.append(el("span", { class: data.stream === "stderr" ? "stderr" : "" }, shownLines(decoder.decode(asBytes(data.data), { stream: true }))));
      while (text.childNodes.length > MOST_PIECES) text.firstChild.remove();
      if (low) panel.scrollTop = panel.scrollHeight;
    } else if (name === "dropped") {
      text.append(el("span", { class: "meta" }, `[${data.events} pieces are not kept any more]\n`));
    } else if (name === "end") {
      if (!text.childNodes.length) text.append(el("span", { class: "meta" }, "It printed nothing."));
      ended(data);
    }
  }, signal, () => stored(text, run, ended));
}

// Of a run that the service remembers only on disk there is no stream.
async function stored(text, run, ended) {
  try {
    const found = await json(`/v1/runs/${run.id}`);
    const read = (value) => (value ? shownLines(new TextDecoder().decode(asBytes(value))) : "");
    if (found.outcome) text.replaceChildren(read(found.outcome.stdout), el("span", { class: "stderr" }, read(found.outcome.stderr)));
    ended(found);
  } catch { /* it is gone */ }
}

// ---- diff, files

export async function diff(panel, box) {
  try {
    const answer = await ask(`/v1/boxes/${box.id}/diff`);
    const text = await answer.text();
    if (!answer.ok) throw new Error(text);
    panel.replaceChildren(text ? el("pre", {}, text.split("\n").slice(0, 20000).map(diffLine)) : el("p", { class: "empty" }, "Nothing has changed."));
  } catch (error) { failed(panel, error); }
}

function diffLine(line) {
  const kind = /^(diff|index|new|deleted|old|similarity|rename|---|\+\+\+)/.test(line) ? "meta"
    : line.startsWith("@@") ? "hunk" : line.startsWith("+") ? "add" : line.startsWith("-") ? "del" : "";
  return el("span", { class: kind }, `${shownLines(line)}\n`);
}

export async function files(panel, box, path = "") {
  try {
    const query = path ? `?path=${encodeURIComponent(path)}` : "";
    const found = (await json(`/v1/boxes/${box.id}/files${query}`)).files;
    const above = path.includes("/") ? path.slice(0, path.lastIndexOf("/")) : "";
    const inside = (name) => (path ? `${path}/${name}` : name);
    const rows = found.map((row) => el("tr", {},
      el("td", {}, row.kind === "directory" ? el("button", { type: "button", onclick: () => files(panel, box, inside(row.name)) }, `${shown(row.name)}/`)
        : row.kind === "file" ? el("button", { type: "button", onclick: () => file(panel, box, inside(row.name), path) }, shown(row.name)) : shown(row.name)),
      el("td", { class: "kind" }, row.kind), el("td", { class: "num" }, row.kind === "file" ? bytes(row.bytes) : "")));
    panel.replaceChildren(
      el("p", { class: "head" }, path ? el("button", { type: "button", onclick: () => files(panel, box, above) }, "↑ up") : null, el("span", { class: "mono" }, `/${shown(path)}`)),
      rows.length ? el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "name"), el("th", {}, "kind"), el("th", {}, "size"))), el("tbody", {}, rows))
        : el("p", { class: "empty" }, "The directory is empty."));
  } catch (error) { failed(panel, error); }
}

async function file(panel, box, path, above) {
  try {
    const answer = await ask(`/v1/boxes/${box.id}/file?path=${encodeURIComponent(path)}`);
    const data = new Uint8Array(await answer.arrayBuffer());
    if (!answer.ok) throw new Error("the file could not be read");
    const cut = data.length > 200000 ? `\n… ${bytes(data.length - 200000)} more` : "";
    panel.replaceChildren(
      el("p", { class: "head" }, el("button", { type: "button", onclick: () => files(panel, box, above) }, "↑ back"), el("span", { class: "mono" }, shown(path)), el("span", { class: "faint" }, bytes(data.length))),
      el("pre", {}, shownLines(new TextDecoder().decode(data.subarray(0, 200000))) + cut));
  } catch (error) { failed(panel, error); }
}

// ---- what holds it, and the verdict on its evidence

export function enforcement(panel, document) {
  const rows = Object.entries((document.outcome && document.outcome.enforced) || {});
  if (!rows.length) return panel.replaceChildren(el("p", { class: "empty" }, "It has not ended yet."));
  panel.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "what"), el("th", {}, "asked"), el("th", {}, "held by"))),
    el("tbody", {}, rows.map(([name, row]) => el("tr", {}, el("td", {}, shown(name)), el("td", {}, shown(JSON.stringify(row.requested))),
      el("td", {}, row.applied ? shown(row.mechanism) : pill("not applied", "bad")))))));
}

export async function evidence(panel, run) {
  try {
    const found = await json(`/v1/runs/${run.id}/bundle`);
    const told = await post("/v1/bundles/verify", { bundle: found });
    const rows = told.holds ? [["format", told.format], ["state", told.state], ["signed by", (told.signers || []).join(", ")], ["violations", (told.violations || []).length],
        ["graded", told.format === "ringfence-run-1" ? "no: it tells what ran, not whether that was good" : "yes"]]
      : [["step", told.step], ["problem", told.problem]];
    panel.replaceChildren(
      el("p", { class: `verdict ${told.holds ? "good" : "bad"}` }, told.holds ? "✓ The bundle holds: nothing of it was changed since it was signed." : "✗ The bundle does not hold."),
      facts(rows),
      el("pre", {}, shownLines(JSON.stringify(told.verdict || {}, null, 2))));
  } catch (error) { failed(panel, error); }
}

export function attemptRow(told) {
  const details = told.details || {};
  const what = details.path || details.name || details.address || details.reason || details.capability || "";
  return el("li", {}, el("time", { class: "faint" }, clock(told.time)), pill(details.operation || told.kind, told.kind === "egress" ? "warn" : "bad"),
    el("span", { class: "what", title: shown(what) }, shown(what)), el("span", { class: "faint mono" }, (told.box || told.run || "").slice(-6)));
}

// ---- lists

export function boxItem(select) {
  return (box) => {
    const button = el("button", { type: "button", class: "item", onclick: () => select("box", box.id) },
      el("span", { class: "name" }), graph("processor and memory of the last minute"), el("span", { class: "sub" }));
    return el("li", {}, button);
  };
}

export function updateBox(child, box) {
  const last = box.samples.at(-1) || [0, 0, 0];
  child.querySelector(".name").textContent = shown(box.workspace || box.id.slice(-8));
  child.querySelector(".sub").textContent = box.state === "open"
    ? `${Math.round(last[1])} % cpu · ${bytes(last[2])} · ${shown(box.policy)}` : `parked · ${shown(box.policy)}`;
  draw(child.querySelector("svg"), box.samples);
}

export function runItem(select) {
  return (run) => el("li", {}, el("button", { type: "button", class: "item", onclick: () => select("run", run.id) },
    el("span", { class: "name" }), el("span", { class: "pill" }), el("span", { class: "sub" })));
}

export function updateRun(child, run, now) {
  child.querySelector(".name").textContent = shown(run.argv.join(" "));
  const mark = child.querySelector(".pill");
  mark.textContent = word(run);
  mark.className = `pill ${kindOf(run)}`;
  const lasted = run.began ? span((run.ended || now) - run.began) : "waits";
  child.querySelector(".sub").textContent = [lasted, shown(run.policy), run.attempts ? `${run.attempts} ${run.attempts === 1 ? "attempt" : "attempts"}` : ""].filter(Boolean).join(" · ");
}

export { keyed };
