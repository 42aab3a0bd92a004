// Elements and texts. What comes out of a sandbox reaches the page as text alone: there is no other way in here, and the
// page's policy refuses every other (trusted-types 'none').

export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) made.append(child instanceof Node ? child : String(child));
  return made;
}

export const find = (id) => document.getElementById(id);

export function bytes(count) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (count >= size) return `${(count / size).toFixed(count / size < 10 ? 1 : 0)} ${unit}`;
  }
  return `${count} B`;
}

export function span(seconds) {
  if (!(seconds >= 0)) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

// A name that a program chose: what would steer or turn the line is shown as its code.
export function shown(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (char) => `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`);
}

// Of output, which has lines: all but line ends and tabs.
export function shownLines(text) {
  return String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (char) => (char === "\r" ? "" : `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`));
}

export function kindOf(run) {
  if (run.state === "queued") return "warn";
  if (run.state === "running") return "";
  if (run.state === "ended") return run.status === "OK" ? "good" : "bad";
  return "bad";
}

export const word = (run) => (run.state === "ended" ? run.status : run.state);

export function pill(text, kind = "") {
  return el("span", { class: `pill ${kind}` }, shown(text));
}

// Children by key: what is there already is kept, so focus and scrolling stay where they are.
export function keyed(list, rows, keyOf, make, update) {
  const known = new Map([...list.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const row of rows) {
    const key = keyOf(row);
    let child = known.get(key);
    if (!child) { child = make(row); child.dataset.key = key; }
    known.delete(key);
    update(child, row);
    const place = before ? before.nextSibling : list.firstChild;
    if (place !== child) list.insertBefore(child, place);
    before = child;
  }
  for (const child of known.values()) child.remove();
}
