// The half of the page that shows: it takes files and options, and asks the worker.
// The same script is both halves; in a worker there is no document.

const page = { worker: null, bundle: null, waiting: [], timer: 0 };
const KEY_DELAY_MS = 250;

function startPage() {
  page.source = document.currentScript.textContent;
  page.policy = globalThis.trustedTypes?.createPolicy("ringfence-worker", { createScriptURL: (url) => url });
  const on = (id, event, action) => byId(id).addEventListener(event, action);
  on("bundle", "change", () => take(byId("bundle").files[0]));
  for (const id of ["trust", "folder", "missing"]) on(id, "change", verify);
  for (const id of ["key", "nonce"]) on(id, "input", verifySoon);
  on("forget", "click", forgetTrust);
  document.addEventListener("dragover", (event) => dragged(event, true));
  document.addEventListener("dragleave", (event) => dragged(event, false));
  document.addEventListener("drop", dropped);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => (part.open = true)));
}

function byId(id) {
  return document.getElementById(id);
}

function dragged(event, over) {
  event.preventDefault();
  byId("drop").classList.toggle("over", over);
}

function dropped(event) {
  dragged(event, false);
  take(event.dataTransfer.files[0]);
}

function take(file) {
  if (!file) return;
  page.bundle = file;
  byId("chosen").textContent = `${printable(file.name)} · ${bytesShown(file.size)}`;
  document.body.classList.add("has-bundle");
  verify();
}

function forgetTrust() {
  byId("trust").value = "";
  verify();
}

function verifySoon() {
  clearTimeout(page.timer);
  page.timer = setTimeout(verify, KEY_DELAY_MS);
}

function verify() {
  clearTimeout(page.timer);
  const [trustFile] = byId("trust").files;
  byId("key").disabled = Boolean(trustFile);
  byId("forget").hidden = !trustFile;
  if (!page.bundle) return;
  page.worker?.terminate(); // whatever it was at, the question has changed
  page.worker = newWorker();
  page.waiting = [];
  setState("busy");
  byId("progress").value = 0;
  page.worker.onmessage = ({ data }) => received(data);
  page.worker.onerror = (event) => show({ state: "unusable", text: event.message || "the worker did not start" });
  page.worker.postMessage({
    file: page.bundle,
    key: byId("key").value.trim(),
    trustFile,
    nonce: byId("nonce").value.trim(),
    allowMissingEnvironment: byId("missing").checked,
    files: folderFiles(),
  });
}

// The browser puts the name of the chosen directory first.
function folderFiles() {
  const files = [...byId("folder").files];
  if (!files.length) return null;
  return files.map((file) => ({ path: file.webkitRelativePath.split("/").slice(1).join("/"), file }));
}

function newWorker() {
  const url = URL.createObjectURL(new Blob([page.source], { type: "text/javascript" }));
  return new Worker(page.policy ? page.policy.createScriptURL(url) : url);
}

function received(data) {
  if (data.progress) return showProgress(data.progress);
  if (data.list) return page.waiting.shift()(data.rows);
  show(data);
}

function moreRows(list, from) {
  return new Promise((resolve) => {
    page.waiting.push(resolve);
    page.worker.postMessage({ list, from });
  });
}

function showProgress({ number, means, part }) {
  byId("progress").value = (number - 1 + part) / STEPS.length;
  byId("doing").textContent = `Step ${number} of ${STEPS.length}: ${means}`;
}

function show(result) {
  byId("report").replaceChildren(...fullReport(result, moreRows).filter(Boolean));
  setState(result.state, result.failure?.number ?? 0);
}

function setState(state, step = 0) {
  byId("result").dataset.state = state;
  byId("result").dataset.step = step;
  byId("busy").hidden = state !== "busy";
  byId("report").hidden = state === "busy";
}

if (typeof document === "undefined") startWorker();
else startPage();
