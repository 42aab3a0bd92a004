// What a person sees. Every text goes in as text (never as HTML): a bundle is written by strangers.

const FILE_UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];

// element("p", "note", "text", child …): a tag, its class, its children.
function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.flat().filter((child) => child !== null && child !== ""));
  return made;
}

const SHAPES = {
  ok: "M20 34 L29 43 L46 22",
  intact: "M26 26 a7 7 0 1 1 9 7 q-3 1 -3 6 M32 46 v1",
  failed: "M22 22 L42 42 M42 22 L22 42",
  unusable: "M32 18 v18 M32 45 v1",
};

function icon(state) {
  const draw = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    return made;
  };
  const svg = draw("svg", { viewBox: "0 0 64 64", class: "icon", "aria-hidden": "true" });
  svg.append(draw("circle", { cx: 32, cy: 32, r: 29 }), draw("path", { d: SHAPES[state] }));
  return svg;
}

function bytesShown(count) {
  let unit = 0;
  while (count >= 1024 && unit < FILE_UNITS.length - 1) [count, unit] = [count / 1024, unit + 1];
  return `${unit ? count.toFixed(1) : count} ${FILE_UNITS[unit]}`;
}

function durationShown(milliseconds) {
  const seconds = milliseconds / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}

const hash = (text) => element("code", "hash", text);
const mark = (holds, yes, no) => element("span", holds ? "tag good" : "tag bad", holds ? yes : no);

function banner(result) {
  const [title, text] = HEADLINES[result.state];
  const words = element("div", "", element("h2", "", title), element("p", "", text));
  if (result.failure) {
    words.append(element("p", "reason", result.failure.text));
    words.append(element("p", "quiet", `What must hold at this step: ${result.failure.means}.`));
  }
  if (result.text) words.append(element("p", "reason", result.text));
  return element("section", `banner ${result.state}`, icon(result.state), words);
}

function cards(result) {
  const what = happened(result);
  const [primary, ...others] = result.signers;
  const named = others.filter((signer) => signer.name);
  return element("div", "cards",
    element("section", "card", element("h3", "", "Who signed"),
      element("p", "big", primary.name || "Unknown signer"),
      hash(primary.key),
      named.map((signer) => element("p", "", `and ${signer.name}`))),
    element("section", "card", element("h3", "", "What was decided"),
      element("p", "big", what.title), element("p", "", what.text)),
    element("section", "card", element("h3", "", "What was recorded"),
      element("p", result.verdict.status === "clean" ? "big good" : "big bad",
        result.verdict.status === "clean" ? "Clean" : "Compromised"),
      element("p", "", what.record.split(": ")[1]),
      result.protections
        ? element("p", "", `${result.protections.applied} of ${result.protections.asked} protections applied`) : null));
}

function bullets(title, className, texts) {
  const list = element("ul", className, texts.map((text) => element("li", "", text)));
  return element("section", "", element("h3", "", title), list);
}

function meanings(result) {
  return element("div", "columns",
    bullets("What this proves", "proven", provenBy(result)),
    bullets("What it does not prove", "unproven", notProvenBy(result)));
}

function section(title, count, open, ...children) {
  const made = element("details", "section");
  made.open = open;
  const shown = count === null ? "" : element("span", "count", count.toLocaleString("en"));
  made.append(element("summary", "", element("h3", "", title), shown), ...children);
  return made;
}

// A list that the worker hands out a piece at a time; `row` makes one element of one entry.
function growing(result, name, holder, row, ask) {
  const { total, rows } = result.lists[name];
  const place = holder.tBodies?.[0] ?? holder;
  const more = element("button", "more");
  more.type = "button";
  const fill = (entries) => {
    place.append(...entries.map(row));
    more.textContent = `Show more (${(total - place.childElementCount).toLocaleString("en")} left)`;
    more.hidden = place.childElementCount >= total;
  };
  more.addEventListener("click", async () => fill(await ask(name, place.childElementCount)));
  fill(rows);
  return [element("div", "scroll", holder), more];
}

function tableOf(...titles) {
  const head = element("tr", "", titles.map((title) => element("th", "", title)));
  return element("table", "", element("thead", "", head), element("tbody", ""));
}

const cells = (...values) => element("tr", "", values.map((value) => element("td", "", value ?? "")));

function pairs(entries) {
  const shown = entries.filter(([, value]) => value !== undefined && value !== "");
  return element("dl", "", shown.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]));
}

function violationRow(entry) {
  const target = entry.path ?? entry.host ?? "";
  return element("li", entry.kind,
    element("span", "moment", `step ${entry.step}`),
    element("span", "what", KINDS[entry.kind]),
    element("code", "target", target, entry.path !== undefined && entry.host !== undefined ? ` ${entry.host}` : ""),
    element("span", "quiet", `${entry.syscall}, pid ${entry.pid}`));
}

function violationsSection(result, ask) {
  const { total } = result.lists.violations;
  const body = total
    ? growing(result, "violations", element("ol", "timeline"), violationRow, ask)
    : [element("p", "quiet", "None was recorded.")];
  return section("Timeline of violations", total, true, ...body);
}

function inputsSection(result, ask) {
  const row = (entry) => cells(element("span", "tag", entry.role), entry.name, inputKind(entry), hash(entry.sha256));
  const made = section("Inputs", result.lists.inputs.total, true,
    ...growing(result, "inputs", tableOf("Role", "Name", "Kind", "SHA-256"), row, ask));
  if (result.lists.variables.total) {
    made.append(element("h4", "", "Environment variables of the agent, by name"),
      ...growing(result, "variables", element("ul", "chips"), (entry) => element("li", "", entry.name), ask));
  }
  return made;
}

function inputKind({ kind, bytes, files }) {
  const size = { file: `, ${bytesShown(bytes)}`, tree: `, ${bytesShown(bytes)} in ${counted(files, "file", "files")}` };
  return kind + (size[kind] ?? "");
}

function runSection(result, ask) {
  const { run } = result;
  const { recorder, host } = run;
  const phase = (entry) => cells(entry.name, entry.status,
    entry.exit_code ?? (entry.signal === null ? "" : `signal ${entry.signal}`),
    `${durationShown(entry.wall_ms)}${entry.wall_limit_ms === null ? "" : ` of ${durationShown(entry.wall_limit_ms)}`}`,
    entry.timed_out ? mark(false, "", "timed out") : "",
    Object.entries(entry.usage).map(([name, value]) => usageShown(name, value)).join(", "));
  return section("The run", null, false,
    pairs([["Started", timeShown(run.started_at)], ["Ended", timeShown(run.ended_at)], ["Nonce", hash(run.nonce)],
      ["Host", `${host.system} ${host.kernel}, ${host.machine}`],
      ["Recorder", recorderShown(recorder)]]),
    ...growing(result, "phases", tableOf("Phase", "Status", "Exit", "Time", "", "Usage"), phase, ask),
    ...(result.lists.posture.total
      ? [element("h4", "", "Posture of the host"),
        ...growing(result, "posture", tableOf("Setting", "Value"), (entry) => cells(entry.name, entry.value), ask)]
      : []));
}

function recorderShown({ healthy, mechanism, events_count, dropped, problem }) {
  return element("span", "", mark(healthy && !dropped, "healthy", "not healthy"),
    ` ${mechanism}, ${counted(events_count, "event", "events")}, ${dropped} dropped ${problem}`);
}

function usageShown(name, value) {
  if (name.endsWith("_bytes")) return `${name.slice(0, -6).replaceAll("_", " ")} ${bytesShown(value)}`;
  return name.endsWith("_ms") ? `${name.slice(0, -3)} ${durationShown(value)}` : `${name} ${value}`;
}

function enforcementSection(result, ask) {
  const row = (entry) => cells(entry.protection,
    entry.requested
      ? mark(entry.applied, "applied", "NOT applied")
      : `${entry.applied ? "applied, " : ""}not asked for`,
    entry.mechanism, entry.detail);
  return section("Protections", result.lists.enforcement.total, false,
    ...growing(result, "enforcement", tableOf("Protection", "State", "Mechanism", "Detail"), row, ask));
}

function artifactsSection(result, ask) {
  const row = (entry) => cells(entry.name, bytesShown(entry.bytes), hash(entry.sha256));
  const made = section("Artifacts", result.lists.artifacts.total, false,
    ...growing(result, "artifacts", tableOf("Name", "Size", "SHA-256"), row, ask));
  if (result.lists.texts.total) {
    const text = (entry) => {
      const details = element("details", "text", element("summary", "", entry.name), element("pre", "", entry.value));
      return element("li", "", details);
    };
    made.append(element("h4", "", "Texts in the bundle"),
      ...growing(result, "texts", element("ul", "texts"), text, ask));
  }
  return made;
}

function environmentSection(result) {
  const names = Object.keys(result.environment);
  if (!names.length) return "";
  return section("Environment", null, false, pairs(names.map((name) => [name, result.environment[name]])));
}

function signersSection(result) {
  const rows = result.signers.map((signer) => cells(
    element("span", "tag", signer.primary ? "verdict" : "countersignature"),
    signer.name || element("span", "tag bad", "not known"),
    signer.roles.join(", "),
    element("div", "", hash(signer.key), element("div", "quiet", signer.id))));
  const table = tableOf("Signed", "Name", "Roles", "Public key");
  table.tBodies[0].append(...rows);
  const anchors = result.anchors.map((anchor) => element("li", "",
    `${anchor.kind}: ${anchor.known ? `existed by ${timeShown(anchor.at)}` : anchor.note}`));
  return section("Signers and proofs of time", result.signers.length, false,
    element("div", "scroll", table), anchors.length ? element("ul", "", anchors) : "");
}

const STEP_STATES = { held: "holds", failed: "fails", idle: "", other: "not in this format", unreached: "not reached" };

/* Steps that have nothing to look at in this bundle are no failures, and are told apart. */
function stepsCounted(steps) {
  const held = steps.filter((step) => step.state === "held").length;
  const idle = steps.filter((step) => step.state === "idle" || step.state === "other").length;
  return `${held} of ${steps.length - idle} hold${idle ? `, ${idle} do not apply` : ""}`;
}

function stepsSection(result) {
  const rows = result.steps.map((step) => {
    const state = element("td", `state ${step.state}`, step.idle || STEP_STATES[step.state]);
    return element("tr", step.state, element("td", "", String(step.number)), element("td", "word", step.word),
      element("td", "", step.means), state);
  });
  const table = tableOf("Step", "Word", "What must hold", "Result");
  table.tBodies[0].append(...rows);
  const count = stepsCounted(result.steps);
  return section("The steps of the verification", count, result.state === "failed", element("div", "scroll", table));
}

function notesSection(result) {
  return result.notes.length ? bullets("Worth knowing", "notes", result.notes) : "";
}

function fullReport(result, ask) {
  if (result.state === "unusable") return [banner(result)];
  if (result.state === "failed") return [banner(result), stepsSection(result), colophon(result)];
  const ours = result.run ? [inputsSection, runSection, enforcementSection] : [];
  return [
    banner(result), cards(result), notesSection(result), meanings(result), violationsSection(result, ask),
    ...ours.map((part) => part(result, ask)),
    artifactsSection(result, ask), environmentSection(result), signersSection(result), stepsSection(result),
    colophon(result),
  ];
}

function colophon(result) {
  return element("p", "quiet colophon", `SHA-256 of the file: `, hash(result.sha256),
    ` · verified in this browser on ${new Date().toLocaleString()}`);
}
