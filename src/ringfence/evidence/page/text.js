// Words for people. Owns: how untrusted text is quoted, shortened and made harmless to read.
// Quotes as the command line does (Python's ascii() and repr()), so that both verifiers say the same.

class EvidenceError extends Error {}

const NOT_PRINTABLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
const SHORT_ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\" };

function escapedChar(char) {
  const code = char.codePointAt(0);
  const hex = code.toString(16);
  if (char in SHORT_ESCAPES) return SHORT_ESCAPES[char];
  if (code < 0x100) return "\\x" + hex.padStart(2, "0");
  return code < 0x10000 ? "\\u" + hex.padStart(4, "0") : "\\U" + hex.padStart(8, "0");
}

function firstCharacters(text, count) {
  return Array.from(text.slice(0, 2 * count)).slice(0, count).join("");
}

function escapedAscii(text) {
  return text.replace(/[^\x20-\x5b\x5d-\x7e]/gu, escapedChar);
}

function quoted(text, escaped) {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  return mark + (mark === "'" ? escaped.replaceAll("'", "\\'") : escaped) + mark;
}

// Python's ascii(text).
function asciiQuoted(text) {
  return quoted(text, escapedAscii(text));
}

// Python's repr(text).
function printableQuoted(text) {
  return quoted(text, Array.from(text, (c) => (c === "\\" || NOT_PRINTABLE.test(c) ? escapedChar(c) : c)).join(""));
}

// Text from a bundle without the characters that reorder a line or hide in it; `kept` stay as they are.
function printable(text, kept = "") {
  if (/^[\x20-\x7e]*$/.test(text)) return text;
  return Array.from(text, (c) => (!kept.includes(c) && NOT_PRINTABLE.test(c) ? escapedChar(c) : c)).join("");
}

// A JSON value as Python's ascii() shows it, or at least its first 20 characters, which is all that is told.
function asciiShown(value) {
  if (typeof value === "string") return asciiQuoted(firstCharacters(value, 60));
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (value instanceof Float) return floatShown(value.value);
  if (Array.isArray(value)) return `[${value.slice(0, 20).map(asciiShown).join(", ")}]`;
  if (!(value instanceof Map)) return String(value);
  return `{${[...value].slice(0, 20).map((pair) => pair.map(asciiShown).join(": ")).join(", ")}}`;
}

// Python's repr of a float.
function floatShown(number) {
  if (Object.is(number, -0)) return "-0.0";
  const [digits, exponent] = number.toExponential().split("e");
  if (exponent < -4 || exponent >= 16) return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
  return Number.isInteger(number) ? `${number}.0` : String(number);
}

// By code points, which is also the order of the UTF-8 bytes; UTF-16 sorts surrogates too low for that.
function compareCharacters(left, right) {
  const shorter = Math.min(left.length, right.length);
  for (let i = 0; i < shorter; i++) {
    const a = left.charCodeAt(i), b = right.charCodeAt(i);
    if (a !== b) return rank(a) - rank(b);
  }
  return left.length - right.length;
}

function rank(unit) {
  return unit < 0xd800 ? unit : unit < 0xe000 ? unit + 0x2000 : unit - 0x800;
}
