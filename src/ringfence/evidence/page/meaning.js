// What a verified bundle proves and what it does not: docs/explanation/bundle.md in short, for this very bundle.

function provenBy(result) {
  const { format, asked, lists, anchors, signers } = result;
  const ours = OURS.includes(format);
  const anchored = anchors.find((anchor) => anchor.known);
  const others = signers.filter((signer) => !signer.primary && signer.name);
  return [
    [true, asked.key
      ? "The holder of the key you gave signed this verdict."
      : "Whoever holds the key shown above signed this verdict."],
    [true, "The verdict, the violations and their order are those that were signed."],
    [true, ours
      ? "No artifact was exchanged, added or taken away, and none has another size."
      : "No artifact was exchanged, added or taken away."],
    [ours, `What went in, byte for byte: ${lists.inputs.total} inputs, and the names of the agent's variables.`],
    [ours, "Which protections were asked for and which the sandbox says it applied."],
    [ours && result.verdict.status === "clean", "The recorder was alive to the end and dropped nothing."],
    [ours && result.verdict.pass, "A grader that came to an end decided «pass»."],
    [asked.nonce, "It is the run made for your challenge, not an older one."],
    [asked.files, "The files in the directory you chose are the signed ones."],
    [anchored, `It existed by ${timeShown(anchored?.at ?? "")}: a log that your trust file names says so.`],
    [others.length, `${others.map((signer) => signer.name).join(", ")} signed this very verdict too.`],
  ].filter(([holds]) => holds).map(([, text]) => text);
}

function notProvenBy(result) {
  const { asked, anchors, format } = result;
  return [
    [!asked.key, "Who signed it. Anybody can make a key: compare the key above with one you got from the signer."],
    [asked.key, "That the signer is honest. Who holds the key can sign anything."],
    [format === PROCTOR, "Sizes, inputs, enforcement and time: Proctor's format does not sign them."],
    [true, "That the signer's machine was not changed: what was enforced is the sandbox's own statement."],
    [format === UNGRADED, "That it did its work well: nobody graded it, so «pass» is always false."],
    [format === UNGRADED, "Which program files ran: the command's words are bound, not what they name."],
    [format !== UNGRADED, "That the agent did not know the answer beforehand."],
    [true, "That everything forbidden was seen. Isolation keeps things out; the record holds what was watched."],
    [true, "That it was the only try."],
    [!anchors.some((anchor) => anchor.known), "When it happened: the times are the signer's own word."],
    [!asked.nonce, "That it is fresh: no challenge (nonce) was asked for."],
    [!asked.files, "That files beside the bundle are the signed ones: no directory was given."],
  ].filter(([holds]) => holds).map(([, text]) => text);
}

const KINDS = {
  masked_read: "read of a hidden path",
  masked_write: "write to a hidden path",
  blocked_connect: "blocked connection",
};

function counted(count, one, many) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

// 2026-11-01T12:03:00.000000Z as people write it.
function timeShown(time) {
  const [whole, fraction = ""] = time.slice(0, -1).split(".");
  const decimals = fraction.replace(/0+$/, "");
  return `${whole.replace("T", " ")}${decimals && "."}${decimals} UTC`;
}

function happened({ verdict, format }) {
  const graded = format !== UNGRADED;
  const count = verdict.violations_count;
  const recorded = count ? `${counted(count, "violation", "violations")} recorded` : "the recorder was not sure";
  const reward = verdict.reward === undefined ? "" : `, reward ${verdict.reward}`;
  return {
    title: !graded ? "Nothing: it was not graded" : verdict.pass ? "Passed" : "Did not pass",
    text: `${graded ? "Task" : "Run"} ${verdict.task_id}${reward}`,
    record: verdict.status === "clean" ? "Clean: no violation recorded" : `Compromised: ${recorded}`,
  };
}

const HEADLINES = {
  ok: ["Verified", "Nothing was changed since it was signed, and the signer is the one you named."],
  intact: [
    "Intact, signer unknown",
    "Nothing was changed since it was signed. But anybody could have made and signed it: name the key you expect.",
  ],
  failed: ["Not OK", "Do not rely on anything in this file."],
  unusable: ["Cannot verify", "This says nothing about the bundle."],
};
