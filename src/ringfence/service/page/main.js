// The page: one stream for the lists, one for what is selected, keys.

import { bytes, clock, el, find, keyed, kindOf, pill, shown, span, word } from "./parts.js";
import { ask, follow, json } from "./stream.js";
import * as views from "./views.js";

const MOST_ATTEMPTS = 200;
let picture = { boxes: [], runs: [], service: null, now: 0 };
let selected = null; // {kind, id, tab, stop}
let attempts = 0;

// ---- the whole

function meter(name, text, part) {
  const bar = el("div", { class: part >= 1 ? "bar full" : "bar" }, el("i"));
  bar.firstChild.style.width = `${Math.min(100, Math.round(part * 100))}%`;
  return el("div", { class: "meter", title: name }, el("span", {}, name), el("b", {}, text), bar);
}

function showService(service) {
  const share = (row) => (row.most ? row.now / row.most : 0);
  find("meters").replaceChildren(
    meter("sandboxes", `${service.sandboxes.now} / ${service.sandboxes.most}`, share(service.sandboxes)),
    meter("memory", `${bytes(service.memory_bytes.now)} / ${bytes(service.memory_bytes.most)}`, share(service.memory_bytes)),
    meter("queue", `${service.queue.now} / ${service.queue.most}`, share(service.queue)));
  find("tenant").textContent = shown(service.tenant.name);
  state(service.state === "ok" ? "live" : service.state, service.state === "ok" ? "good" : "warn");
}

function state(text, kind) {
  find("state").textContent = text;
  find("state").className = `pill ${kind}`;
}

function showLists() {
  const { boxes, runs, now } = picture;
  keyed(find("boxes"), boxes, (box) => box.id, views.boxItem(select), views.updateBox);
  keyed(find("runs"), runs, (run) => run.id, views.runItem(select), (child, run) => views.updateRun(child, run, now));
  find("boxcount").textContent = boxes.length || "";
  const waiting = runs.filter((run) => run.state === "queued").length;
  const going = runs.filter((run) => run.state === "running").length;
  find("runcount").textContent = [going ? `${going} running` : "", waiting ? `${waiting} waiting` : ""].filter(Boolean).join(", ");
  find("noboxes").hidden = boxes.length > 0;
  find("noruns").hidden = runs.length > 0;
  mark();
}

function mark() {
  for (const item of document.querySelectorAll("#lists .item")) {
    item.setAttribute("aria-current", String(Boolean(selected) && item.parentElement.dataset.key === selected.id));
  }
}

function hear(name, data) {
  if (name === "picture") {
    picture = data;
    showService(data.service);
    showLists();
    refresh();
    if (!selected) first();
  } else if (name === "attempt") {
    attempts += 1;
    find("noattempts").hidden = true;
    find("attemptcount").textContent = attempts;
    find("attempts").prepend(views.attemptRow(data));
    while (find("attempts").children.length > MOST_ATTEMPTS) find("attempts").lastChild.remove();
  }
}

// ---- the selected

const TABS = {
  run: [["Output", (panel, run, it) => views.output(panel, run, it.stop.signal, (found) => { it.document = found; refresh(found); })],
    ["Protections", async (panel, run) => views.enforcement(panel, await json(`/v1/runs/${run.id}`))],
    ["Evidence", views.evidence]],
  box: [["Diff", views.diff], ["Files", (panel, box) => views.files(panel, box)],
    ["Runs", (panel, box) => runsIn(panel, box)]],
};

function runsIn(panel, box) {
  const rows = picture.runs.filter((run) => run.box === box.id);
  const list = el("ul", { class: "rows" });
  panel.replaceChildren(rows.length ? list : el("p", { class: "empty" }, "Nothing has run in it."));
  keyed(list, rows, (run) => run.id, views.runItem(select), (child, run) => views.updateRun(child, run, picture.now));
}

function first() {
  const { boxes, runs } = picture;
  if (boxes.length) select("box", boxes[0].id);
  else if (runs.length) select("run", runs[0].id);
}

function find_selected() {
  return selected && picture[selected.kind === "run" ? "runs" : "boxes"].find((each) => each.id === selected.id);
}

function select(kind, id, tab = 0) {
  if (selected) selected.stop.abort();
  const known = selected && selected.kind === kind && selected.id === id ? selected.document : null;
  selected = { kind, id, tab, stop: new AbortController(), document: known };
  const row = find_selected();
  if (!row) return;
  const panel = el("div", { role: "tabpanel", id: "panel", tabindex: "0" });
  const tabs = TABS[kind].map(([name], at) => el("button", { type: "button", role: "tab", "aria-selected": String(at === tab), "aria-controls": "panel",
    title: `${name} (${at + 1})`, onclick: () => select(kind, id, at) }, name));
  find("detail").replaceChildren(el("div", { class: "head", id: "dhead" }), el("dl", { class: "facts", id: "dfacts" }), el("div", { role: "tablist" }, tabs), panel);
  refresh();
  mark();
  TABS[kind][tab][1](panel, row, selected);
}

function refresh(found) {
  const row = found || find_selected();
  const head = find("dhead");
  if (!row || !head) return;
  if (selected.kind === "run") {
    const living = row.state === "running" || row.state === "queued";
    head.replaceChildren(el("h3", {}, shown(row.argv.join(" "))), pill(word(row), kindOf(row)),
      living ? el("button", { type: "button", class: "danger", onclick: end }, "End it") : "");
    const usage = (selected.document && selected.document.outcome && selected.document.outcome.usage) || {};
    find("dfacts").replaceWith(withId(views.facts([["policy", row.policy], ["by", row.tenant], ["began", row.began ? clock(row.began) : "waits"],
      ["took", row.began ? span((row.ended || picture.now) - row.began) : ""], ["exit", row.rc], ["peak memory", usage.peak_memory_bytes ? bytes(usage.peak_memory_bytes) : ""],
      ["attempts", row.attempts || ""], ["reason", row.status && row.status !== "OK" ? row.reason : ""], ["id", row.id]])));
  } else {
    const last = row.samples.at(-1) || [0, 0, 0];
    head.replaceChildren(el("h3", {}, shown(row.workspace || row.id)), pill(row.state, row.state === "open" ? "good" : ""));
    find("dfacts").replaceWith(withId(views.facts([["policy", row.policy], ["by", row.tenant], ["opened", clock(row.created)], ["runs now", row.runs],
      ["cpu", `${Math.round(last[1])} %`], ["memory", bytes(last[2])], ["id", row.id]])));
  }
}

function withId(list) {
  list.id = "dfacts";
  return list;
}

async function end() {
  const row = find_selected();
  if (row && selected.kind === "run" && (row.state === "running" || row.state === "queued")) await ask(`/v1/runs/${row.id}`, { method: "DELETE" });
}

// ---- keys and themes

function step(by) {
  const items = [...document.querySelectorAll("#lists .item")];
  const at = items.findIndex((item) => selected && item.parentElement.dataset.key === selected.id);
  const next = items[Math.max(0, Math.min(items.length - 1, at < 0 ? 0 : at + by))];
  if (next) { next.click(); next.focus(); }
}

function theme() {
  const dark = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.theme = dark === "dark" ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
}

const KEYS = {
  j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1), t: theme, x: end,
  "?": () => find("keys").showModal(),
  Escape: () => { const current = document.querySelector("#lists .item[aria-current=true]"); if (current) current.focus(); },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || /INPUT|TEXTAREA/.test(event.target.tagName)) return;
  if (/^Arrow/.test(event.key) && event.target.id === "panel") return;
  const tab = Number(event.key) - 1;
  if (selected && TABS[selected.kind][tab]) select(selected.kind, selected.id, tab);
  else if (KEYS[event.key]) KEYS[event.key]();
  else return;
  event.preventDefault();
});

const chosen = localStorage.getItem("theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
find("theme").addEventListener("click", theme);
find("help").addEventListener("click", () => find("keys").showModal());
follow("/v1/events", hear, new AbortController().signal, () => state("no connection", "bad"));
