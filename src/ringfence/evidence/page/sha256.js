// SHA-256 (FIPS 180-4) and what is built on it: labelled digests and the hash chain.
// Not WebCrypto's: a chain is hundreds of thousands of short messages one after the other, and each
// call there is a trip to another thread and back.

const ROUND_CONSTANTS = fractionsOfPrimes(64, Math.cbrt);
const START_STATE = fractionsOfPrimes(8, Math.sqrt);
const GENESIS = "0".repeat(64);
const utf8 = new TextEncoder();

function fractionsOfPrimes(count, root) {
  const primes = [];
  for (let n = 2; primes.length < count; n++) if (primes.every((prime) => n % prime)) primes.push(n);
  return Uint32Array.from(primes, (prime) => (root(prime) % 1) * 2 ** 32);
}

class Sha256 {
  constructor() {
    this.state = START_STATE.slice();
    this.block = new Uint8Array(64);
    this.schedule = new Int32Array(64);
    this.bytes = 0;
  }

  update(data) {
    let filled = this.bytes % 64;
    let at = 0;
    this.bytes += data.length;
    if (filled) {
      at = Math.min(64 - filled, data.length);
      this.block.set(data.subarray(0, at), filled);
      filled += at;
      if (filled < 64) return this;
      this.compress(this.block, 0);
    }
    for (; at + 64 <= data.length; at += 64) this.compress(data, at);
    this.block.set(data.subarray(at), 0);
    return this;
  }

  digest() {
    const bits = this.bytes * 8;
    const padding = new Uint8Array(((119 - (this.bytes % 64)) % 64) + 9);
    padding[0] = 0x80;
    const view = new DataView(padding.buffer);
    view.setUint32(padding.length - 8, Math.floor(bits / 2 ** 32));
    view.setUint32(padding.length - 4, bits >>> 0);
    this.update(padding);
    const result = new DataView(new ArrayBuffer(32));
    this.state.forEach((word, index) => result.setUint32(4 * index, word));
    return new Uint8Array(result.buffer);
  }

  compress(data, at) {
    const w = this.schedule;
    for (let i = 0; i < 16; i++, at += 4) {
      w[i] = (data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3];
    }
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15], y = w[i - 2];
      const small0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const small1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16] + small0 + w[i - 7] + small1) | 0;
    }
    let [a, b, c, d, e, f, g, h] = this.state;
    for (let i = 0; i < 64; i++) {
      const big1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const big0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const one = (h + big1 + ((e & f) ^ (~e & g)) + ROUND_CONSTANTS[i] + w[i]) | 0;
      const two = (big0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + one) | 0;
      d = c; c = b; b = a; a = (one + two) | 0;
    }
    const s = this.state;
    s[0] += a; s[1] += b; s[2] += c; s[3] += d; s[4] += e; s[5] += f; s[6] += g; s[7] += h;
  }
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
