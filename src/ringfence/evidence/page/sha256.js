// SHA-256 (FIPS 180-4) and what is built on it: labelled digests and the hash chain.
// Not WebCrypto's: a chain is hundreds of thousands of short messages one after the other, and each
// call there is a trip to another thread and back.

const ROUND_CONSTANTS = fractionsOfPrimes(64, Math.cbrt);
const START_STATE = fractionsOfPrimes(8, Math.sqrt);
const SCHEDULE = new Int32Array(64); // one for all: it is filled anew for each block
const GENESIS = "0".repeat(64);
const utf8 = new TextEncoder();

function fractionsOfPrimes(count, root) {
  const primes = [];
  for (let n = 2; primes.length < count; n++) if (primes.every((prime) => n % prime)) primes.push(n);
  return Int32Array.from(primes, (prime) => Math.floor((root(prime) % 1) * 2 ** 32) | 0);
}

class Sha256 {
  constructor() {
    this.state = START_STATE.slice();
    this.block = new Uint8Array(64);
    this.bytes = 0;
  }

  update(data) {
    const filled = this.bytes % 64;
    let at = 0;
    this.bytes += data.length;
    if (filled) {
      at = Math.min(64 - filled, data.length);
      this.block.set(data.subarray(0, at), filled);
      if (filled + at < 64) return this;
      compress(this.state, this.block, 0);
    }
    for (; at + 64 <= data.length; at += 64) compress(this.state, data, at);
    if (at < data.length) this.block.set(data.subarray(at), 0);
    return this;
  }

  digest() {
    const { block, state, bytes } = this;
    const filled = bytes % 64;
    block.fill(0, filled);
    block[filled] = 0x80;
    if (filled >= 56) {
      compress(state, block, 0);
      block.fill(0);
    }
    const view = new DataView(block.buffer);
    view.setUint32(56, Math.floor(bytes / 2 ** 29));
    view.setUint32(60, (bytes * 8) >>> 0);
    compress(state, block, 0);
    for (let i = 0; i < 8; i++) view.setInt32(4 * i, state[i]);
    return block.slice(0, 32);
  }
}

function compress(state, data, at) {
  const w = SCHEDULE;
  for (let i = 0; i < 16; i++, at += 4) {
    w[i] = (data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3];
  }
  for (let i = 16; i < 64; i++) {
    const x = w[i - 15], y = w[i - 2];
    const small0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
    const small1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
    w[i] = (w[i - 16] + small0 + w[i - 7] + small1) | 0;
  }
  let a = state[0], b = state[1], c = state[2], d = state[3];
  let e = state[4], f = state[5], g = state[6], h = state[7];
  for (let i = 0; i < 64; i++) {
    const big1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const big0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
    const one = (h + big1 + ((e & f) ^ (~e & g)) + ROUND_CONSTANTS[i] + w[i]) | 0;
    const two = (big0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g; g = f; f = e; e = (d + one) | 0;
    d = c; c = b; b = a; a = (one + two) | 0;
  }
  state[0] += a; state[1] += b; state[2] += c; state[3] += d;
  state[4] += e; state[5] += f; state[6] += g; state[7] += h;
}

function sha256(...parts) {
  const hasher = new Sha256();
  parts.forEach((part) => hasher.update(part));
  return hasher.digest();
}

function sha256Hex(text) {
  return hexOf(sha256(utf8.encode(text)));
}

const HEX_OF_BYTE = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));

function hexOf(bytes) {
  let text = "";
  for (const byte of bytes) text += HEX_OF_BYTE[byte];
  return text;
}

function bytesOfHex(hex) {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

// SHA-256 over «label NUL value NUL …», sorted by label; refuses what would make that ambiguous.
function labelledDigest(pairs) {
  const sorted = pairs.toSorted(([left], [right]) => compareCharacters(left, right));
  const hasher = new Sha256();
  let previous = null;
  for (const [label, value] of sorted) {
    if (label === previous) throw new EvidenceError(`the label ${asciiQuoted(label)} occurs twice`);
    if (label.includes("\0") || value.includes("\0")) {
      throw new EvidenceError(`a NUL in ${asciiQuoted(label)}: the digest would be ambiguous`);
    }
    hasher.update(utf8.encode(`${label}\0${value}\0`));
    previous = label;
  }
  return hexOf(hasher.digest());
}

// The head after one chained record, refused unless the record says the same.
function followChain(head, record, number) {
  if (!(record instanceof Map) || !record.has("chain")) throw new EvidenceError(`record ${number} has no chain`);
  const next = sha256Hex(head + canonicalWithout(record, "chain"));
  if (record.get("chain") !== next) {
    throw new EvidenceError(`record ${number} does not follow from the one before it`);
  }
  return next;
}
