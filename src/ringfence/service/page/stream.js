// Requests and streams. The token goes in a header, so streams are read by fetch: an EventSource could not send it.

let token = sessionStorage.getItem("token") || "";
let asking = null;

export function askForToken() {
  if (asking) return asking;
  const dialog = document.getElementById("login");
  asking = new Promise((done) => {
    dialog.addEventListener("close", () => {
      token = document.getElementById("token").value.trim();
      sessionStorage.setItem("token", token);
      asking = null;
      done();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

function headers(more) {
  return token ? { authorization: `Bearer ${token}`, ...more } : { ...more };
}

export async function ask(path, options = {}) {
  for (;;) {
    const answer = await fetch(path, { ...options, headers: headers(options.headers), credentials: "omit", redirect: "error" });
    if (answer.status !== 401) return answer;
    await askForToken();
  }
}

export async function json(path, options) {
  const answer = await ask(path, options);
  const found = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw new Error(found.error ? found.error.message : `the service answered with ${answer.status}`);
  return found;
}

export const post = (path, body) =>
  json(path, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } });

// Calls hear(name, data) until the stream has its end or the signal comes; goes on by Last-Event-ID where it broke.
export async function follow(path, hear, signal, lost = () => {}) {
  let last = "0";
  for (let pause = 500; !signal.aborted; pause = Math.min(pause * 2, 8000)) {
    try {
      const answer = await ask(path, { headers: { "last-event-id": last }, signal });
      if (!answer.ok) throw new Error(`the service answered with ${answer.status}`);
      for await (const event of events(answer.body)) {
        pause = 500;
        if (event.id) last = event.id;
        hear(event.name, JSON.parse(event.data));
        if (event.name === "end") return;
      }
    } catch (error) {
      if (signal.aborted) return;
      lost(error);
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => {
        const place = line.indexOf(": ");
        return [line.slice(0, place), line.slice(place + 2)];
      }));
      if (fields.data !== undefined) yield { id: fields.id, name: fields.event || "message", data: fields.data };
    }
  }
}

export function asBytes(value) {
  if (typeof value === "string") return new TextEncoder().encode(value);
  return Uint8Array.from(atob(value.base64), (char) => char.charCodeAt(0));
}
