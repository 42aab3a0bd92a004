// The verifier: the steps of docs/reference/formats.md, section 8, in order; the first failure ends it.
// One function a step. It throws EvidenceError with a plain reason, or returns why it had nothing to check.
// Numbers and words are those of the Python module verify; a test compares them, and the messages too.

const MAX_PROBLEMS = 10000; // a document of millions of faults is not read to its end
const MAKERS = {
  [PROCTOR]: /^0\.1\.[0-9]{1,9}$/,
  [RINGFENCE]: /^ringfence-3\/[A-Za-z0-9.+-]{1,64}$/,
  [UNGRADED]: /^ringfence-run-1\/[A-Za-z0-9.+-]{1,64}$/,
};
const PROGRESS_RECORDS = 2000;

const step = (number, word, check, means, only = []) => ({ number, word, check, means, only });
const STEPS = [
  step(1, "json", checkJson, "strict JSON that can be read in one way only"),
  step(2, "version", checkVersion, "a known maker, and the version that belongs to it"),
  step(3, "missing", checkMissing, "no part is missing"),
  step(4, "unknown", checkUnknown, "no part that the format does not name"),
  step(5, "type", checkTypes, "every value has its type, form and order"),
  step(6, "signature", checkSignature, "the signature fits the verdict"),
  step(7, "signer", checkSigner, "the signer is the one you expect"),
  step(8, "chain", checkChain, "each violation follows from the one before, up to the signed head"),
  step(9, "count", checkCount, "as many violations as were signed"),
  step(10, "status", checkStatus, "«clean» exactly when there is no violation"),
  step(11, "reward", checkReward, "«pass» exactly when the reward is above zero"),
  step(12, "artifacts", checkArtifacts, "the list of artifacts is the signed one"),
  step(13, "environment", checkEnvironment, "the environment is the signed one"),
  step(14, "contents", checkContents, "each embedded text is the artifact of its name", OURS),
  step(15, "run", checkRun, "run.json is complete and agrees with the verdict"),
  step(16, "sizes", checkSizes, "each artifact has its signed size", OURS),
  step(17, "inputs", checkInputs, "inputs.json is complete; policy and image are those of the run", OURS),
  step(18, "countersignatures", checkCountersignatures, "each further signature fits the verdict", OURS),
  step(19, "anchors", checkAnchors, "each proof of time holds", OURS),
  step(20, "trust", checkTrust, "the signers fulfil what you demand"),
  step(21, "files", checkFiles, "the files on disk are the artifacts"),
];

// options: trust, nonce (or null), allowMissingEnvironment, files (or null), now (a full time), onProgress(step, part)
async function verifyBundle(bytes, options) {
  const found = { bytes, ...options, steps: [], faults: new Map(), anchors: [], notes: [], failure: null };
  for (const step of STEPS) {
    if (step.only.length && !step.only.includes(found.format)) {
      found.steps.push({ ...step, state: "other" });
      continue;
    }
    found.progress = (part) => options.onProgress?.(step, part);
    found.progress(0);
    try {
      const idle = await step.check(found);
      found.steps.push({ ...step, state: idle ? "idle" : "held", idle });
    } catch (error) {
      if (!(error instanceof EvidenceError)) throw error;
      found.steps.push({ ...step, state: "failed" });
      return { ...found, failure: { ...step, text: `step ${step.number}: ${step.word}: ${error.message}` } };
    }
  }
  found.state = found.trust.anySigner ? "intact, signer unknown" : "ok";
  found.notes.push(...remarks(found));
  return found;
}

function refuseUnless(holds, text) {
  if (!holds) throw new EvidenceError(text);
}

function checkJson(found) {
  found.document = parseStrictJson(found.bytes, found.progress);
  refuseUnless(found.document instanceof Map, "not a JSON object");
}

// The maker is signed, so it decides; the unsigned bundle_version only has to agree with it.
function checkVersion(found) {
  found.verdict = found.document.get("verdict");
  const maker = found.verdict instanceof Map ? found.verdict.get("proctor_version") : undefined;
  refuseUnless(isText(maker), "no verdict.proctor_version that says who made this");
  found.format = Object.keys(MAKERS).find((name) => MAKERS[name].test(maker));
  refuseUnless(
    found.format, `made by ${asciiQuoted(firstCharacters(maker, 60))}, which this verifier does not know`);
  const version = found.document.get("bundle_version");
  refuseUnless(
    isInteger(version) && BUNDLES[found.format].has(version),
    `bundle_version ${asciiShown(version).slice(0, 20)} is not one that ${maker} makes`);
}

function checkMissing(found) {
  const shape = BUNDLES[found.format].get(found.document.get("bundle_version"));
  for (const { fault, text } of problemsOf(found.document, shape, MAX_PROBLEMS)) {
    if (!found.faults.has(fault)) found.faults.set(fault, text);
  }
  refuseUnless(!found.faults.has(MISSING), found.faults.get(MISSING));
}

function checkUnknown(found) {
  refuseUnless(!found.faults.has(UNKNOWN), found.faults.get(UNKNOWN));
}

function checkTypes(found) {
  refuseUnless(!found.faults.has(TYPE), found.faults.get(TYPE));
  found.violations = found.document.get("violations");
  found.artifacts = found.document.get("manifest").get("artifacts");
  found.environment = found.document.get("environment");
  found.contents = found.document.get("contents");
  found.signatures = found.document.get("signatures") ?? [];
  const primary = found.verdict.get("public_key");
  found.signers = [primary, ...found.signatures.map((entry) => entry.get("public_key"))];
  refuseUnless(!found.signers.includes(primary, 1), "signatures must not repeat the key of the verdict");
}

async function checkSignature(found) {
  const { verdict } = found;
  found.message = utf8.encode(canonicalWithout(verdict, "public_key", "signature"));
  refuseUnless(
    await signatureHolds(verdict.get("public_key"), verdict.get("signature"), found.message),
    "the signature does not fit the verdict: something in it was changed");
}

function checkSigner(found) {
  const key = found.signers[0];
  if (found.trust.anySigner) return "no key to compare with";
  refuseUnless(findKey(found.trust, key), `signed by ${key} (${keyId(key)}), which is not a trusted key`);
}

function checkChain(found) {
  let head = GENESIS;
  found.violations.forEach((record, index) => {
    head = followChain(head, record, index + 1);
    if (index % PROGRESS_RECORDS === 0) found.progress(index / found.violations.length);
  });
  refuseUnless(
    head === found.verdict.get("violations_head"),
    "the records do not end at the signed head: some were removed, added or changed");
}

function checkCount(found) {
  const [count, signed] = [found.violations.length, found.verdict.get("violations_count")];
  refuseUnless(count === signed, `${count} records, but the verdict says ${signed}`);
}

// A run without a grader may be compromised without a violation: step 15 then asks for a recorder that failed.
function checkStatus(found) {
  const [status, count] = [found.verdict.get("status"), found.verdict.get("violations_count")];
  const unsure = found.format === UNGRADED && status === "compromised";
  refuseUnless(unsure || (status === "clean") === (count === 0), `status ${status} contradicts ${count} violations`);
}

function checkReward(found) {
  const [reward, passed] = [found.verdict.get("reward"), found.verdict.get("pass")];
  refuseUnless(
    found.format !== UNGRADED || (!passed && reward === undefined),
    "a run without a grader can neither pass nor have a reward");
  if (reward === undefined) return "no reward";
  const number = reward instanceof Float ? reward.value : reward;
  refuseUnless(passed === number > 0, `pass ${passed} contradicts a reward of ${asciiShown(reward)}`);
}

function checkArtifacts(found) {
  const digest = labelledDigest(found.artifacts.map((item) => [item.get("name"), item.get("sha256")]));
  refuseUnless(digest === found.verdict.get("artifacts_digest"), "the list of artifacts is not the signed one");
}

function checkEnvironment(found) {
  const { environment, verdict } = found;
  if (!environment) return checkMissingEnvironment(found);
  const digest = labelledDigest(ENVIRONMENT_LABELS.map((label) => [label, environment.get(label) ?? ""]));
  refuseUnless(digest === verdict.get("env_digest"), "the environment is not the signed one");
  refuseUnless(
    !OURS.includes(found.format) || environment.get("proctor_version") === verdict.get("proctor_version"),
    "environment and verdict name different makers");
}

function checkMissingEnvironment(found) {
  refuseUnless(
    found.allowMissingEnvironment, "the environment is missing: nobody can tell whether it was taken away");
  found.notes.push("the environment is missing, and was allowed to be");
  return "missing, as you allowed";
}

function checkContents(found) {
  const digests = new Map(found.artifacts.map((item) => [item.get("name"), item.get("sha256")]));
  for (const name of [RUN_NAME, INPUTS_NAME]) {
    refuseUnless(found.contents.has(name), `the text of ${name} is missing`);
  }
  for (const [name, text] of found.contents) {
    refuseUnless(
      digests.get(name) === sha256Hex(text), `the text of ${asciiQuoted(name)} is not the artifact of that name`);
  }
}

async function checkCountersignatures(found) {
  for (const entry of found.signatures) {
    const key = entry.get("public_key");
    refuseUnless(
      await signatureHolds(key, entry.get("signature"), found.message),
      `the signature of ${keyId(key)} does not fit the verdict`);
  }
  return found.signatures.length ? "" : "none";
}

async function checkAnchors(found) {
  const anchored = joined(found.message, bytesOfHex(found.verdict.get("signature")));
  for (const anchor of found.document.get("anchors") ?? []) {
    const result = await CHECK_ANCHOR[anchor.get("type")](anchor, anchored, found.trust);
    found.anchors.push(result);
    if (result.note) found.notes.push(`anchor ${result.kind}: ${result.note}`);
  }
  return found.anchors.length ? "" : "none";
}

function checkTrust(found) {
  const { trust } = found;
  refuseUnless(trust.formats.includes(found.format), `the trust file does not accept the format ${found.format}`);
  const lacking = trust.anchors.find((kind) => !found.anchors.some((anchor) => anchor.known && anchor.kind === kind));
  refuseUnless(!lacking, `no known anchor of the required kind ${lacking}`);
  judgeSigners(trust, found.signers, momentOf(found));
  return trust.anySigner ? "no key to compare with" : "";
}
