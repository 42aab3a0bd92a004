// Canonical JSON, RFC 8785: one value, one text. ECMAScript is what that RFC is made of, so its own
// rules for numbers, for escapes in strings and for the order of strings are the ones asked for.

function canonical(value) {
  if (typeof value === "string") return JSON.stringify(value);
  if (value instanceof Float) return String(value.value);
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value instanceof Map) return canonicalMembers([...value.entries()]);
  return String(value); // a number, true, false or null
}

function canonicalMembers(members) {
  const sorted = members.sort(([left], [right]) => (left < right ? -1 : 1)); // by UTF-16 units, as asked
  return `{${sorted.map(([name, member]) => `${JSON.stringify(name)}:${canonical(member)}`).join(",")}}`;
}

function canonicalWithout(map, ...names) {
  return canonicalMembers([...map.entries()].filter(([name]) => !names.includes(name)));
}
