// The formats as shapes: docs/reference/formats.md, sections 2 to 7 (the Python module schema; a test compares them).

const RUN_NAME = "run.json", INPUTS_NAME = "inputs.json", EVENTS_NAME = "events.jsonl";
const PROCTOR = "proctor-0.1", RINGFENCE = "ringfence-3", UNGRADED = "ringfence-run-1";
const OURS = [RINGFENCE, UNGRADED];
const ROLES = ["task", "oracle", "grader", "instruction", "policy", "agent", "scaffold", "image", "other"];
const REQUIRED_ROLES = ["task", "grader", "policy", "agent"];
const UNGRADED_ROLES = ["policy", "agent"];
const MAX_SIGNATURES = 16;

const isText = (value) => typeof value === "string";
const isInteger = (value) => typeof value === "number";
const matching = (pattern, expected) => leaf(expected, (value) => isText(value) && pattern.test(value));
const oneOf = (...choices) => leaf(choices.map(asciiQuoted).join(" or "), (value) => choices.includes(value));
const orNull = (one) => leaf(`${one.expected} or null`, (value) => value === null || one.accepts(value));

const TIME_FORM = /^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z$/;

function isTime(value) {
  if (!isText(value) || !TIME_FORM.test(value) || value.startsWith("0000")) return false;
  const whole = value.slice(0, 19);
  const date = new Date(whole + "Z");
  return !Number.isNaN(date.getTime()) && date.toISOString().slice(0, 19) === whole; // no 30th of February
}

// A time with all six decimals: as text these compare as the times do.
function fullTime(time) {
  const [whole, fraction = ""] = time.slice(0, -1).split(".");
  return `${whole}.${fraction.padEnd(6, "0")}Z`;
}

function isNumber(value) {
  const number = value instanceof Float ? value.value : value;
  return typeof number === "number" && Math.abs(number) <= Number.MAX_SAFE_INTEGER;
}

// The one encoding of its bytes: decoders are lenient about white space, padding and unused bits.
function isBase64(value) {
  try {
    return isText(value) && btoa(atob(value)) === value;
  } catch {
    return false;
  }
}

const isShortText = (value) => isText(value) && value.length >= 1 && value.length <= 510 && [...value].length <= 255;

function isArtifactPath(value) {
  if (!isShortText(value) || value.includes("\0") || value.includes("\\")) return false;
  return value.split("/").every((part) => !["", ".", ".."].includes(part));
}

const TEXT = leaf("a string", isText);
const NO_NUL = leaf("a string without NUL", (value) => isText(value) && !value.includes("\0"));
const NO_NUL_NOT_EMPTY = leaf(
  "a string without NUL, absent rather than empty", (value) => NO_NUL.accepts(value) && value !== "");
const FLAG = leaf("true or false", (value) => typeof value === "boolean");
const COUNT = leaf("an integer, 0 or more", (value) => isInteger(value) && value >= 0);
const INTEGER = leaf("an integer", isInteger);
const NUMBER_LEAF = leaf("a number of at most 2^53 - 1", isNumber);
const HEX64 = matching(/^[0-9a-f]{64}$/, "64 lower-case hex characters");
const HEX128 = matching(/^[0-9a-f]{128}$/, "128 lower-case hex characters");
const TIME = leaf("a time such as 2026-01-31T12:00:00Z", isTime);
const BASE64 = leaf("base64 with padding and no stray bits", isBase64);
const ANY_NAME = leaf(
  "a string of 1 to 255 characters without NUL", (value) => NO_NUL.accepts(value) && isShortText(value));
const PATH_NAME = leaf("a relative path without empty, '.' or '..' parts", isArtifactPath);

const ascending = (list, compare) => list.every((item, index) => index === 0 || compare(list[index - 1], item) < 0);
const distinct = (list) => new Set(list).size === list.length;

const uniqueBy = (member) => (list) =>
  distinct(list.map((item) => item.get(member))) ? "" : `must have each ${member} once`;

const sortedBy = (...members) => (list) => {
  const compare = (left, right) =>
    members.reduce((so_far, name) => so_far || compareCharacters(left.get(name), right.get(name)), 0);
  return ascending(list, compare) ? "" : `must be sorted by ${members.join(" and ")}, each once`;
};

const fewItems = (list) => (list.length > MAX_SIGNATURES ? `must not have more than ${MAX_SIGNATURES} items` : "");
const signatureRule = (list) => fewItems(list) || sortedBy("public_key")(list);
const anchorRule = (list) => fewItems(list) || (distinct(list.map(canonical)) ? "" : "must have each item once");
const uniqueStrings = (list) => (distinct(list) ? "" : "must have each value once");
const sortedStrings = (list) => (ascending(list, compareCharacters) ? "" : "must be sorted, each once");

const phasesWith = (name, ...never) => (list) => {
  const names = list.map((item) => item.get("name"));
  const wrong = never.find((each) => names.includes(each));
  return uniqueBy("name")(list) || (wrong ? `must not have a phase ${asciiQuoted(wrong)}` : "") ||
    (names.includes(name) ? "" : `must have a phase ${asciiQuoted(name)}`);
};

const enforcementRule = (list) => (list.length ? uniqueBy("protection")(list) : "must not be empty");
const keyRule = (list) => (list.length ? uniqueBy("public_key")(list) : "must not be empty: nobody would be trusted");

const inputsWith = (roles, ...never) => (list) => {
  const found = list.map((item) => item.get("role"));
  const absent = roles.find((role) => !found.includes(role));
  const wrong = never.find((role) => found.includes(role));
  return sortedBy("role", "name")(list) ||
    (absent ? `must have an input with the role ${asciiQuoted(absent)}` : "") ||
    (wrong ? `must not have an input with the role ${asciiQuoted(wrong)}` : "");
};

const VERDICT = record(
  {
    task_id: TEXT,
    pass: FLAG,
    status: oneOf("clean", "compromised"),
    violations_head: HEX64,
    violations_count: COUNT,
    env_digest: HEX64,
    artifacts_digest: HEX64,
    proctor_version: TEXT,
    public_key: HEX64,
    signature: HEX128,
  },
  { reward: NUMBER_LEAF });
const VIOLATION = record(
  {
    step: COUNT,
    kind: oneOf("masked_read", "masked_write", "blocked_connect"),
    pid: COUNT,
    syscall: TEXT,
    chain: HEX64,
  },
  { path: TEXT, host: TEXT });
const ENVIRONMENT = record(
  {
    agent_command: NO_NUL,
    rootfs_kind: oneOf("host", "image"),
    proctor_version: NO_NUL,
    proctor_commit: NO_NUL,
    policy_sha256: HEX64,
    spec_sha256: HEX64,
  },
  { image_ref: NO_NUL_NOT_EMPTY, image_digest: NO_NUL_NOT_EMPTY });
const ENVIRONMENT_LABELS = [...ENVIRONMENT.required.keys(), ...ENVIRONMENT.optional.keys()];
const ANCHORS = {
  "merkle-log": record({
    type: oneOf("merkle-log"),
    log_public_key: HEX64,
    logged_at: TIME,
    leaf_index: COUNT,
    tree_size: COUNT,
    root: HEX64,
    signed_at: TIME,
    signature: HEX128,
    proof: items(HEX64),
  }),
  rfc3161: record({ type: oneOf("rfc3161"), token: BASE64 }),
};

const manifest = (name, rule) => record({ artifacts: items(record({ name, sha256: HEX64, bytes: COUNT }), rule) });
const PROCTOR_MEMBERS = {
  bundle_version: INTEGER,
  verdict: VERDICT,
  violations: items(VIOLATION),
  manifest: manifest(ANY_NAME, uniqueBy("name")),
};
const RINGFENCE_BUNDLE = record(
  {
    bundle_version: INTEGER,
    verdict: VERDICT,
    violations: items(VIOLATION),
    manifest: manifest(PATH_NAME, sortedBy("name")),
    environment: ENVIRONMENT,
    contents: table(PATH_NAME, TEXT),
  },
  {
    signatures: items(record({ public_key: HEX64, signature: HEX128 }), signatureRule),
    anchors: items(choice("type", ANCHORS), anchorRule),
  });
const BUNDLES = {
  [PROCTOR]: new Map([
    [1, record(PROCTOR_MEMBERS)],
    [2, record({ ...PROCTOR_MEMBERS, environment: ENVIRONMENT })],
  ]),
  [RINGFENCE]: new Map([[3, RINGFENCE_BUNDLE]]),
  [UNGRADED]: new Map([[3, RINGFENCE_BUNDLE]]),
};
const PHASE = record({
  name: TEXT,
  status: TEXT,
  exit_code: orNull(INTEGER),
  signal: orNull(INTEGER),
  timed_out: FLAG,
  wall_limit_ms: orNull(COUNT),
  wall_ms: COUNT,
  usage: table(TEXT, INTEGER),
});
const runWith = (rule) => record({
  format: oneOf("ringfence.run/1"),
  task_id: TEXT,
  nonce: HEX64,
  started_at: TIME,
  ended_at: TIME,
  phases: items(PHASE, rule),
  enforcement: items(
    record({ protection: TEXT, requested: FLAG, applied: FLAG, mechanism: TEXT, detail: TEXT }), enforcementRule),
  recorder: record({
    healthy: FLAG, mechanism: TEXT, events_count: COUNT, events_head: HEX64, dropped: COUNT, problem: TEXT,
  }),
  host: record({ system: TEXT, kernel: TEXT, machine: TEXT, posture: table(TEXT, TEXT) }),
  artifact_bytes: table(PATH_NAME, COUNT),
  embedded: items(PATH_NAME, sortedStrings),
});
const RUN = runWith(phasesWith("agent"));
const UNGRADED_RUN = runWith(phasesWith("run", "agent", "grader"));
const INPUT = record({
  role: oneOf(...ROLES), name: TEXT, kind: oneOf("file", "tree", "image"), sha256: HEX64, bytes: COUNT, files: COUNT,
});
const inputsOf = (rule) => record({
  format: oneOf("ringfence.inputs/1"),
  inputs: items(INPUT, rule),
  environment_variables: items(TEXT, sortedStrings),
});
const INPUTS = inputsOf(inputsWith(REQUIRED_ROLES));
const UNGRADED_INPUTS = inputsOf(inputsWith(UNGRADED_ROLES, "task", "oracle", "grader"));
const TRUST = record(
  {
    format: oneOf("ringfence-trust/1"),
    keys: items(
      record(
        { public_key: HEX64, name: TEXT, roles: items(TEXT, uniqueStrings) },
        { valid_from: TIME, valid_until: TIME, revoked_at: TIME }),
      keyRule),
  },
  {
    logs: items(record({ public_key: HEX64, name: TEXT }), uniqueBy("public_key")),
    timestamp_authorities: items(record({ name: TEXT, certificate_pem: TEXT })),
    required_roles: items(TEXT, uniqueStrings),
    required_anchors: items(oneOf(...Object.keys(ANCHORS)), uniqueStrings),
    accepted_formats: items(oneOf(PROCTOR, RINGFENCE, UNGRADED), uniqueStrings),
  });
