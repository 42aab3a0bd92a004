// The half of the page that works: it runs in a Web Worker, so the other half never freezes. It keeps the
// bundle and hands out only what is shown: short texts, and lists a piece at a time.

const FIRST_ROWS = 200;
const MORE_ROWS = 1000;
const MAX_SHOWN_CHARS = 1000;
const MAX_TEXT_CHARS = 20000;
const MIN_PROGRESS_MS = 50;

let shownLists = {};

function startWorker() {
  self.onmessage = async ({ data }) => {
    if (data.list) self.postMessage({ list: data.list, ...rowsOf(data.list, data.from, MORE_ROWS) });
    else self.postMessage(await answer(data));
  };
}

async function answer(request) {
  try {
    requireSha256();
    await requireEd25519();
    const bytes = new Uint8Array(await request.file.slice(0, MAX_DOCUMENT_BYTES + 1).arrayBuffer());
    const found = await verifyBundle(bytes, await optionsOf(request));
    return { ...summary(found), sha256: hexOf(sha256(bytes)) };
  } catch (error) {
    // Not the bundle's fault: a file that went away, a trust file or key that is none, an old browser.
    return { state: "unusable", text: clip(error.message) };
  }
}

async function optionsOf({ key, trustFile, nonce, allowMissingEnvironment, files }) {
  const trust = trustFile
    ? parseTrust(new Uint8Array(await trustFile.slice(0, MAX_DOCUMENT_BYTES + 1).arrayBuffer()))
    : key ? pinnedTrust(key) : ANY_SIGNER;
  const now = fullTime(new Date().toISOString());
  return { trust, nonce: nonce || null, allowMissingEnvironment, files, now, onProgress: progressTeller() };
}

function progressTeller() {
  let told = 0;
  return (step, part) => {
    const now = performance.now();
    if (now - told < MIN_PROGRESS_MS) return;
    told = now;
    self.postMessage({ progress: { number: step.number, means: step.means, part } });
  };
}

function requireSha256() {
  const right = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // FIPS 180-4, of «abc»
  if (sha256Hex("abc") !== right) throw new Error("this browser computes SHA-256 wrongly");
}

function clip(text, limit = MAX_SHOWN_CHARS, kept = "") {
  const shown = printable(text.slice(0, limit), kept);
  return text.length > limit ? `${shown}… (${text.length} characters)` : shown;
}

// A JSON value as something that structured cloning copies cheaply, every text of it safe to show.
function plain(value) {
  if (typeof value === "string") return clip(value);
  if (value instanceof Float) return value.value;
  if (Array.isArray(value)) return value.slice(0, FIRST_ROWS).map(plain);
  if (value instanceof Map) {
    return Object.fromEntries([...value].slice(0, FIRST_ROWS).map(([name, member]) => [clip(name), plain(member)]));
  }
  return value;
}

function summary(found) {
  const steps = STEPS.map(({ number, word, means }, index) => {
    const { state = "unreached", idle = "" } = found.steps[index] ?? {};
    return { number, word, means, state, idle };
  });
  if (found.failure) {
    shownLists = {};
    const { number, word, means, text } = found.failure;
    return { state: "failed", steps, failure: { number, word, means, text: clip(text) } };
  }
  shownLists = listsOf(found);
  return { state: found.state === "ok" ? "ok" : "intact", steps, ...claims(found) };
}

function claims(found) {
  const { run, trust } = found;
  return {
    verdict: plain(found.verdict),
    format: found.format,
    signers: found.signers.map((key, index) => signer(key, index, trust)),
    anchors: found.anchors.map((anchor) => ({ ...anchor })),
    notes: found.notes.map((note) => clip(note)),
    environment: plain(found.environment ?? new Map()),
    run: run ? plain(new Map([...run].filter(([, value]) => !Array.isArray(value)))) : null,
    protections: run ? protectionCount(run) : null,
    asked: { nonce: found.nonce !== null, files: Boolean(found.files), key: !trust.anySigner },
    lists: Object.fromEntries(Object.keys(shownLists).map((name) => [name, rowsOf(name, 0, FIRST_ROWS)])),
  };
}

function signer(key, index, trust) {
  const known = findKey(trust, key);
  const name = known ? clip(known.name) : "";
  return { key, id: keyId(key), primary: index === 0, name, roles: plain(known?.roles ?? []) };
}

function protectionCount(run) {
  const asked = run.get("enforcement").filter((row) => row.get("requested"));
  return { asked: asked.length, applied: asked.filter((row) => row.get("applied")).length };
}

function listsOf({ violations, artifacts, run, inputs, contents }) {
  const named = (map) => [...map].map(([name, value]) => new Map([["name", name], ["value", value]]));
  return {
    violations,
    artifacts,
    phases: run?.get("phases") ?? [],
    enforcement: run?.get("enforcement") ?? [],
    posture: run ? named(run.get("host").get("posture")) : [],
    inputs: inputs?.get("inputs") ?? [],
    variables: (inputs?.get("environment_variables") ?? []).map((name) => new Map([["name", name]])),
    texts: contents ? named(contents) : [],
  };
}

function rowsOf(name, from, count) {
  const all = shownLists[name] ?? [];
  const row = name === "texts" ? textRow : plain;
  return { total: all.length, rows: all.slice(from, from + count).map(row) };
}

function textRow(entry) {
  return { name: clip(entry.get("name")), value: clip(entry.get("value"), MAX_TEXT_CHARS, "\n\t") };
}
