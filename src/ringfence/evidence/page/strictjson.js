// Strict JSON (docs/reference/formats.md, section 1): what two readers could read in two ways is refused.
// JSON.parse will not do: it takes the last of two equal keys and cannot tell 1 from 1.0.
// An object becomes a Map, so that no key («__proto__», «7») is special; a number with a point or an
// exponent becomes a Float, any other a number.

const MAX_DOCUMENT_BYTES = 64 * 1024 * 1024;
const MAX_COMMAS = 4000000;
const MAX_DEPTH = 64;
const COMMA = 0x2c;
const PROGRESS_CHARS = 1 << 20;

class Float {
  constructor(value) {
    this.value = value;
  }
}

function parseStrictJson(bytes, onProgress = () => {}) {
  if (bytes.length > MAX_DOCUMENT_BYTES) throw new EvidenceError(`larger than ${MAX_DOCUMENT_BYTES >> 20} MiB`);
  let commas = 0;
  for (let i = 0; i < bytes.length; i++) if (bytes[i] === COMMA || bytes[i] === 0x5b || bytes[i] === 0x7b) commas++;
  if (commas > MAX_COMMAS) throw new EvidenceError(`more than ${MAX_COMMAS.toLocaleString("en")} commas and brackets`);
  return new JsonReader(decodeUtf8(bytes), onProgress).document();
}

function decodeUtf8(bytes) {
  try {
    // A byte order mark stays, and is then refused as no JSON.
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new EvidenceError("not UTF-8");
  }
}

const WHITE = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;
const PLAIN_CHARS = /[^"\\\u0000-\u001f]*/y;
const HEX4 = /[0-9a-fA-F]{4}/y;
const ESCAPES = { '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };
const LITERALS = [["true", true], ["false", false], ["null", null]];
const NOT_NUMBERS = ["NaN", "Infinity", "-Infinity"];

class JsonReader {
  constructor(text, onProgress) {
    this.text = text;
    this.at = 0;
    this.onProgress = onProgress;
    this.nextProgress = PROGRESS_CHARS;
  }

  document() {
    this.skipWhite();
    const value = this.value(1);
    this.skipWhite();
    if (this.at < this.text.length) this.fail("Extra data");
    return value;
  }

  value(depth) {
    const char = this.text[this.at];
    if (char === '"') return this.string();
    if (char === "{" || char === "[") {
      if (depth > MAX_DEPTH) throw new EvidenceError(`nested deeper than ${MAX_DEPTH}`);
      return char === "{" ? this.object(depth) : this.array(depth);
    }
    return this.scalar();
  }

  object(depth) {
    const members = new Map();
    let twice = null;
    this.at++;
    this.skipWhite();
    if (this.took("}")) return members;
    do {
      this.skipWhite();
      if (this.text[this.at] !== '"') this.fail("Expecting property name enclosed in double quotes");
      const key = this.string();
      if (members.has(key)) twice ??= key;
      this.skipWhite();
      if (!this.took(":")) this.fail("Expecting ':' delimiter");
      this.skipWhite();
      members.set(key, this.value(depth + 1));
      this.skipWhite();
    } while (this.took(","));
    if (!this.took("}")) this.fail("Expecting ',' delimiter");
    if (twice !== null) throw new EvidenceError(`the key ${printableQuoted(firstCharacters(twice, 80))} occurs twice`);
    return members;
  }

  array(depth) {
    const items = [];
    this.at++;
    this.skipWhite();
    if (this.took("]")) return items;
    do {
      this.skipWhite();
      items.push(this.value(depth + 1));
      this.skipWhite();
    } while (this.took(","));
    if (!this.took("]")) this.fail("Expecting ',' delimiter");
    return items;
  }

  string() {
    const start = this.at++;
    let text = "";
    for (;;) {
      text += this.match(PLAIN_CHARS);
      const char = this.text[this.at];
      if (char === undefined) this.fail("Unterminated string starting at", start);
      if (char !== '"' && char !== "\\") this.fail("Invalid control character at");
      this.at++;
      if (char === '"') break;
      text += this.escape();
    }
    if (!text.isWellFormed()) throw new EvidenceError("a string has an unpaired surrogate (not valid Unicode)");
    if (this.at > this.nextProgress) this.tellProgress();
    return text;
  }

  escape() {
    const char = this.text[this.at++];
    if (char !== "u") return ESCAPES[char] ?? this.fail("Invalid \\escape", this.at - 2);
    const digits = this.match(HEX4) || this.fail("Invalid \\uXXXX escape", this.at);
    return String.fromCharCode(parseInt(digits, 16));
  }

  scalar() {
    for (const [word, value] of LITERALS) if (this.took(word)) return value;
    for (const word of NOT_NUMBERS) if (this.took(word)) throw new EvidenceError(`${word} is not JSON`);
    const text = this.match(NUMBER);
    if (!text) this.fail("Expecting value");
    const number = Number(text);
    if (/[.eE]/.test(text)) {
      if (!Number.isFinite(number)) throw new EvidenceError(`the number ${text.slice(0, 24)} is too large`);
      return new Float(number);
    }
    if (!Number.isSafeInteger(number)) {
      throw new EvidenceError(
        `the integer ${text.slice(0, 24)} is beyond 2^53 and would be read differently elsewhere`);
    }
    return number + 0; // -0 is the integer 0
  }

  skipWhite() {
    const code = this.text.charCodeAt(this.at);
    if (code <= 0x20) this.match(WHITE);
  }

  took(word) {
    const found = this.text.startsWith(word, this.at);
    if (found) this.at += word.length;
    return found;
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (!found) return "";
    this.at += found[0].length;
    return found[0];
  }

  tellProgress() {
    this.nextProgress = this.at + PROGRESS_CHARS;
    this.onProgress(this.at / this.text.length);
  }

  // The words of Python's reader, for those who search for them.
  fail(what, at = this.at) {
    let characters = 0;
    for (let i = 0; i < at; i++) characters += (this.text.charCodeAt(i) & 0xfc00) !== 0xdc00;
    throw new EvidenceError(`not JSON: ${what} at character ${characters}`);
  }
}
