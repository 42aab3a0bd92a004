// Steps 15 to 17 and 21: what run.json and inputs.json say, and the artifacts beside the bundle.

function checkRun(found) {
  if (!OURS.includes(found.format)) {
    refuseUnless(found.nonce === null, "a nonce is expected, and this format has none");
    return "not in Proctor's format";
  }
  found.run = embeddedDocument(found, RUN_NAME, found.format === UNGRADED ? UNGRADED_RUN : RUN);
  const complaint = runRules(found).find(([holds]) => !holds);
  refuseUnless(!complaint, `${RUN_NAME}: ${complaint?.[1]}`);
}

function runRules({ run, verdict, contents, nonce }) {
  const recorder = run.get("recorder");
  const graded = run.get("phases").some((phase) => phase.get("name") === "grader" && !phase.get("timed_out"));
  const embedded = new Set([RUN_NAME, ...run.get("embedded")]);
  const sound = recorder.get("healthy") && recorder.get("dropped") === 0;
  return [
    [run.get("task_id") === verdict.get("task_id"), "another task than the verdict's"],
    [
      embedded.size === contents.size && [...embedded].every((name) => contents.has(name)),
      "contents are not what it says is embedded",
    ],
    [nonce === null || run.get("nonce") === nonce, "not the expected nonce: another or a replayed run"],
    [fullTime(run.get("started_at")) <= fullTime(run.get("ended_at")), "it ended before it started"],
    [verdict.get("status") !== "clean" || sound, "clean, but the recorder was not healthy all the time"],
    [!verdict.get("pass") || graded, "pass, but no grader that came to an end"],
    [
      verdict.get("status") === "clean" || verdict.get("violations_count") > 0 || !sound,
      "compromised, but nothing was recorded and the recorder was healthy",
    ],
  ];
}

function checkSizes(found) {
  const stated = new Map(found.artifacts.map((item) => [item.get("name"), item.get("bytes")]));
  const signed = new Map(found.run.get("artifact_bytes"));
  refuseUnless(!signed.has(RUN_NAME), `${RUN_NAME} cannot state its own size`);
  signed.set(RUN_NAME, utf8.encode(found.contents.get(RUN_NAME)).length);
  for (const name of [...new Set([...stated.keys(), ...signed.keys()])].sort(compareCharacters)) {
    const [listed, size] = [stated.get(name), signed.get(name)];
    refuseUnless(
      listed === size, `${asciiQuoted(name)} has ${listed ?? "None"} bytes in the list, signed ${size ?? "None"}`);
  }
}

function checkInputs(found) {
  const inputs = embeddedDocument(found, INPUTS_NAME, found.format === UNGRADED ? UNGRADED_INPUTS : INPUTS);
  const complaint = inputRules(inputs.get("inputs"), found.environment).find(([holds]) => !holds);
  refuseUnless(!complaint, `${INPUTS_NAME}: ${complaint?.[1]}`);
  found.inputs = inputs;
}

function inputRules(inputs, environment) {
  const ofRole = (role) => inputs.filter((entry) => entry.get("role") === role);
  const policies = ofRole("policy");
  const bound = policies[0]?.get("kind") === "file" && policies[0].get("sha256") === environment.get("policy_sha256");
  const images = ofRole("image").map((entry) => "sha256:" + entry.get("sha256"));
  const fromImage = environment.get("rootfs_kind") === "image";
  return [
    [policies.length === 1 && bound, "not exactly the policy of the environment"],
    [!fromImage || images.includes(environment.get("image_digest")), "not the image of the environment"],
  ];
}

function embeddedDocument(found, name, shape) {
  let document;
  try {
    document = parseStrictJson(utf8.encode(found.contents.get(name)), found.progress);
  } catch (error) {
    throw error instanceof EvidenceError ? new EvidenceError(`${name}: ${error.message}`) : error;
  }
  const [problem] = problemsOf(document, shape, 1);
  refuseUnless(!problem, `${name}: ${problem?.text}`);
  return document;
}

// The time of the bundle: an anchor's if we know one, else the signer's own word, else now.
function momentOf({ anchors, run, now }) {
  const times = anchors.map((anchor) => anchor.at).filter(Boolean).sort();
  if (times.length) return { at: times[0], anchored: true };
  return { at: run ? fullTime(run.get("ended_at")) : now, anchored: false };
}

function* remarks(found) {
  if (found.format === PROCTOR) yield "Proctor's format signs neither sizes, inputs, enforcement nor time";
  if (found.format === UNGRADED) yield "a run without a grader: nobody decided whether it passed";
  for (const key of unknownSigners(found)) {
    yield `also signed by ${key}, a key that is not trusted and so proves nothing`;
  }
  if (!found.run) return;
  const lacking = found.run.get("enforcement").filter((row) => row.get("requested") && !row.get("applied"));
  if (lacking.length) yield `asked for but not enforced: ${lacking.map((row) => row.get("protection")).join(", ")}`;
  const recorder = found.run.get("recorder");
  if (!recorder.get("healthy") || recorder.get("dropped")) {
    yield `the recorder was not healthy: ${recorder.get("problem")}`;
  }
  yield* remarkOnTime(found);
}

function* remarkOnTime(found) {
  const moment = momentOf(found);
  const endedAt = fullTime(found.run.get("ended_at"));
  if (!moment.anchored) yield "the times are the signer's own word: no known anchor";
  else if (Math.abs(milliseconds(moment.at) - milliseconds(endedAt)) > ORDINARY_DELAY_MS) {
    yield `the signer says it ended ${endedAt}, the anchor is of ${moment.at}`;
  }
}

const ORDINARY_DELAY_MS = 5 * 60 * 1000;

function milliseconds(time) {
  return Date.parse(time.slice(0, 19) + "Z") + Number(time.slice(20, 26)) / 1000;
}

// Valid signatures of keys that anybody could have made. The first signer is not one: step 7 has judged it.
function unknownSigners({ signers, trust }) {
  return signers.slice(1).filter((key) => !findKey(trust, key));
}
