// Step 21: the files of a chosen directory are the artifacts of the bundle. Read in pieces, of any size.
// A browser hands out the files below a directory and does not say whether a link was on the way.

const MAX_LINE_BYTES = 1 << 20;
const NEWLINE = 0x0a;

async function checkFiles(found) {
  if (!found.files) return "no directory given";
  const files = new Map(found.files.map(({ path, file }) => [path, file]));
  for (const [index, artifact] of found.artifacts.entries()) {
    found.progress(index / found.artifacts.length);
    await checkFile(found, artifact, files);
  }
}

async function checkFile(found, artifact, files) {
  const name = artifact.get("name");
  const shown = asciiQuoted(name);
  refuseUnless(PATH_NAME.accepts(name), `${shown} is no name to look for on a disk`);
  const file = files.get(name);
  refuseUnless(file, `${shown}: No such file or directory`);
  const same = file.size === artifact.get("bytes") && (await fileDigest(file)) === artifact.get("sha256");
  refuseUnless(same, `${shown} on disk is not the one in the bundle`);
  if (name === EVENTS_NAME && found.run) await checkEvents(file, found.run.get("recorder"));
}

async function fileDigest(file) {
  const hasher = new Sha256();
  for await (const chunk of pieces(file)) hasher.update(chunk);
  return hexOf(hasher.digest());
}

async function checkEvents(file, recorder) {
  let head = GENESIS;
  let count = 0;
  for await (const line of completeLines(file)) {
    head = followChain(head, parseStrictJson(line), ++count);
  }
  refuseUnless(
    head === recorder.get("events_head") && count === recorder.get("events_count"),
    `${EVENTS_NAME} has another head or count than the recorder stated`);
}

async function* completeLines(file) {
  let rest = new Uint8Array();
  let number = 1;
  for await (const chunk of pieces(file)) {
    let data = joined(rest, chunk);
    for (let end; (end = data.indexOf(NEWLINE)) >= 0; number++, data = data.subarray(end + 1)) {
      refuseUnless(end <= MAX_LINE_BYTES, `record ${number} is too long`);
      yield data.subarray(0, end);
    }
    refuseUnless(data.length <= MAX_LINE_BYTES, `record ${number} is too long`);
    rest = data;
  }
  refuseUnless(rest.length === 0, `record ${number} has no end: the file is torn`);
}

async function* pieces(file, size = 1 << 20) {
  for (let at = 0; at < file.size; at += size) yield new Uint8Array(await file.slice(at, at + size).arrayBuffer());
}

function joined(left, right) {
  const both = new Uint8Array(left.length + right.length);
  both.set(left);
  both.set(right, left.length);
  return both;
}
