// What a JSON value must look like, as data (the Python module shape). A missing member, an unknown one
// and a wrong value are told apart, each with its path. The recursion follows the shape, not the input.

const MISSING = "missing", UNKNOWN = "unknown", TYPE = "type";

const leaf = (expected, accepts) => ({ kind: "leaf", expected, accepts });
const record = (required, optional = {}) => ({
  kind: "record",
  required: new Map(Object.entries(required)),
  optional: new Map(Object.entries(optional)),
});
const items = (item, rule = () => "") => ({ kind: "items", item, rule });
const table = (key, value) => ({ kind: "table", key, value });
const choice = (tag, records) => ({ kind: "choice", tag, records: new Map(Object.entries(records)) });

// The first `limit` things that are wrong, in the order of the document: {fault, text}.
function problemsOf(value, shape, limit) {
  const found = [];
  inspect(value, shape, "", { found, limit });
  return found;
}

function inspect(value, shape, path, out) {
  if (out.found.length < out.limit) INSPECT[shape.kind](value, shape, path, out);
}

const INSPECT = {
  leaf(value, shape, path, out) {
    if (!shape.accepts(value)) wrong(path, `must be ${shape.expected}`, out);
  },
  record(value, shape, path, out) {
    if (!(value instanceof Map)) return wrong(path, "must be an object", out);
    for (const name of shape.required.keys()) {
      if (!value.has(name)) report(MISSING, memberPath(path, name), "is missing", out);
    }
    for (const [name, member] of value) {
      const known = shape.required.get(name) ?? shape.optional.get(name);
      if (known) inspect(member, known, path ? `${path}.${name}` : name, out);
      else report(UNKNOWN, memberPath(path, name), "is not a known member", out);
    }
  },
  items(value, shape, path, out) {
    if (!Array.isArray(value)) return wrong(path, "must be an array", out);
    const before = out.found.length;
    value.forEach((item, index) => inspect(item, shape.item, `${path}[${index}]`, out));
    // A rule over all of them relies on each being right.
    const complaint = out.found.length === before && before < out.limit ? shape.rule(value) : "";
    if (complaint) wrong(path, complaint, out);
  },
  table(value, shape, path, out) {
    if (!(value instanceof Map)) return wrong(path, "must be an object", out);
    for (const [name, member] of value) {
      if (!shape.key.accepts(name)) wrong(memberPath(path, name), `must have a key that is ${shape.key.expected}`, out);
      inspect(member, shape.value, memberPath(path, name), out);
    }
  },
  choice(value, shape, path, out) {
    const tag = value instanceof Map ? value.get(shape.tag) : undefined;
    const known = typeof tag === "string" ? shape.records.get(tag) : undefined;
    if (known) return inspect(value, known, path, out);
    if (value instanceof Map && !value.has(shape.tag)) {
      return report(MISSING, memberPath(path, shape.tag), "is missing", out);
    }
    wrong(path, `must be an object with a ${shape.tag} of ${[...shape.records.keys()].join(" or ")}`, out);
  },
};

function wrong(path, text, out) {
  report(TYPE, path, text, out);
}

function report(fault, path, text, out) {
  if (out.found.length < out.limit) out.found.push({ fault, text: `${path || "the document"} ${text}` });
}

function memberPath(path, name) {
  const shown = escapedName(firstCharacters(name, 60));
  return path ? `${path}.${shown}` : shown;
}

// As Python's ascii(name)[1:-1]: a single quote is escaped only where both kinds of quotes occur.
function escapedName(name) {
  return asciiQuoted(name).slice(1, -1);
}
