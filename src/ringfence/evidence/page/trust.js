// Whom the verifier believes (docs/reference/formats.md, section 7), and the anchors in time (section 6).

const ANY_SIGNER = Object.freeze({
  anySigner: true, keys: [], logs: [], roles: [], anchors: [], formats: [PROCTOR, RINGFENCE, UNGRADED],
});

function pinnedTrust(text) {
  const key = { publicKey: parsePublicKey(text), name: "pinned key", roles: [], times: new Map() };
  return { ...ANY_SIGNER, anySigner: false, keys: [key] };
}

function parseTrust(bytes) {
  const document = parseStrictJson(bytes);
  const [problem] = problemsOf(document, TRUST, 1);
  if (problem) throw new EvidenceError(`trust file: ${problem.text}`);
  const keys = document.get("keys").map((key) => ({
    publicKey: key.get("public_key"), name: key.get("name"), roles: key.get("roles"), times: key,
  }));
  return {
    anySigner: false,
    keys,
    logs: (document.get("logs") ?? []).map((log) => log.get("public_key")),
    roles: document.get("required_roles") ?? [],
    anchors: document.get("required_anchors") ?? [],
    formats: document.get("accepted_formats") ?? ANY_SIGNER.formats,
  };
}

const findKey = (trust, publicKey) => trust.keys.find((key) => key.publicKey === publicKey);

// Every signer we know was valid then, and the required roles are held by different ones of them.
function judgeSigners(trust, signers, moment) {
  const known = signers.map((signer) => findKey(trust, signer)).filter(Boolean);
  // An anchor has the first signature in it and no other: a further one may have been added at any time since.
  const unproven = { ...moment, anchored: false };
  known.forEach((key) => requireValid(key, key.publicKey === signers[0] ? moment : unproven));
  if (!canFill(trust.roles, known)) {
    throw new EvidenceError(`the roles ${trust.roles.join(", ")} need different valid signers`);
  }
}

function requireValid(key, moment) {
  const label = `the key ${keyId(key.publicKey)} (${key.name})`;
  const at = (name) => (key.times.has(name) ? fullTime(key.times.get(name)) : null);
  const [from, until, revoked] = ["valid_from", "valid_until", "revoked_at"].map(at);
  if (revoked !== null && !(moment.anchored && moment.at < revoked)) {
    throw new EvidenceError(`${label} is revoked, and no known anchor shows that the bundle is older`);
  }
  if (from !== null && moment.at < from) {
    throw new EvidenceError(`${label} was not valid yet at the time of the bundle`);
  }
  if (until !== null && moment.at >= until) {
    throw new EvidenceError(`${label} was no longer valid at the time of the bundle`);
  }
}

function canFill([role, ...others], keys) {
  if (role === undefined) return true;
  return keys.some((key) => key.roles.includes(role) && canFill(others, keys.filter((other) => other !== key)));
}

const CHECK_ANCHOR = {
  "merkle-log": checkMerkleAnchor,
  // Certificates and CMS are too much for this page. So the stamp counts for nothing here, which is safe:
  // a trust file that requires one fails at step 20.
  rfc3161: async () => ({
    kind: "rfc3161", known: false, at: null,
    note: "not checked: this page does not read RFC 3161 time stamps; use ringfence verify-bundle",
  }),
};

async function checkMerkleAnchor(anchor, anchored, trust) {
  const [logKey, loggedAt, signedAt] = ["log_public_key", "logged_at", "signed_at"].map((name) => anchor.get(name));
  const head = new Map(["root", "signed_at", "tree_size"].map((name) => [name, anchor.get(name)]));
  head.set("format", "ringfence-log-head/1");
  if (!(await signatureHolds(logKey, anchor.get("signature"), utf8.encode(canonical(head))))) {
    throw new EvidenceError("the log's signature over its head is wrong");
  }
  const digest = hexOf(sha256(anchored));
  const entry = new Map([["format", "ringfence-log-entry/1"], ["digest", digest], ["logged_at", loggedAt]]);
  if (!inclusionHolds(utf8.encode(canonical(entry)), anchor)) {
    throw new EvidenceError("the bundle is not in the log at the stated place");
  }
  if (fullTime(loggedAt) > fullTime(signedAt)) throw new EvidenceError("the log's head is older than the entry");
  if (!trust.logs.includes(logKey)) {
    return { kind: "merkle-log", known: false, at: null, note: "the trust file does not name this log" };
  }
  return { kind: "merkle-log", known: true, at: fullTime(loggedAt), note: "" };
}

// RFC 9162, section 2.1.3.2. BigInt: the bit operations of numbers end at 32 bits.
function inclusionHolds(entry, anchor) {
  let node = BigInt(anchor.get("leaf_index"));
  let last = BigInt(anchor.get("tree_size")) - 1n;
  if (node > last) return false;
  let top = sha256(Uint8Array.of(0), entry);
  for (const sibling of anchor.get("proof")) {
    if (last === 0n) return false;
    if (node & 1n || node === last) {
      top = sha256(Uint8Array.of(1), bytesOfHex(sibling), top);
      while (!(node & 1n) && node) [node, last] = [node >> 1n, last >> 1n];
    } else {
      top = sha256(Uint8Array.of(1), top, bytesOfHex(sibling));
    }
    [node, last] = [node >> 1n, last >> 1n];
  }
  return last === 0n && hexOf(top) === anchor.get("root");
}
