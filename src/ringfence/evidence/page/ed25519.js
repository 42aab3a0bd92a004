// Ed25519 by the browser's own WebCrypto, and the three ways in which people write a public key.

// RFC 8032, section 7.1, TEST 1: a browser that does not know this one is not asked about any other.
const KNOWN_KEY = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
const KNOWN_SIGNATURE =
  "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155" +
  "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b";
const SPKI_PREFIX = "302a300506032b6570032100";
const OPENSSH_PREFIX = "0000000b7373682d6564323535313900000020";
const NO_KEY = "not a public key: give 64 lower-case hex characters, a PEM or an ssh-ed25519 line";

async function requireEd25519() {
  const nothing = new Uint8Array();
  const wrong = "00" + KNOWN_SIGNATURE.slice(2);
  const able =
    (await signatureHolds(KNOWN_KEY, KNOWN_SIGNATURE, nothing)) && !(await signatureHolds(KNOWN_KEY, wrong, nothing));
  if (!able) {
    throw new Error("this browser cannot check Ed25519 signatures; Chrome 137, Firefox 129 and Safari 17 can");
  }
}

async function signatureHolds(publicHex, signatureHex, message) {
  try {
    const key = await crypto.subtle.importKey("raw", bytesOfHex(publicHex), "Ed25519", false, ["verify"]);
    return await crypto.subtle.verify("Ed25519", key, bytesOfHex(signatureHex), message);
  } catch {
    return false; // no point on the curve
  }
}

// A label for people; it never decides anything.
function keyId(publicHex) {
  return "ed25519:" + hexOf(sha256(bytesOfHex(publicHex))).slice(0, 16);
}

function parsePublicKey(text) {
  text = text.trim();
  if (/^[0-9a-f]{64}$/.test(text)) return text;
  const armoured = /^-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----$/.exec(text);
  const line = /^ssh-ed25519 ([A-Za-z0-9+/=]+)(\s|$)/.exec(text);
  if (armoured) return keyAfter(SPKI_PREFIX, armoured[1]);
  if (line) return keyAfter(OPENSSH_PREFIX, line[1]);
  throw new EvidenceError(NO_KEY);
}

function keyAfter(prefix, base64) {
  let hex = "";
  try {
    hex = hexOf(Uint8Array.from(atob(base64), (char) => char.charCodeAt(0)));
  } catch {
    throw new EvidenceError("a public key that cannot be read");
  }
  const fits = hex.startsWith(prefix) && hex.length === prefix.length + 64;
  if (!fits) throw new EvidenceError("not an Ed25519 public key");
  return hex.slice(prefix.length);
}
