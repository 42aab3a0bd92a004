// A small graph: memory as a surface, processor time as a line, over the last minute.

const SPACE = "http://www.w3.org/2000/svg";

function shape(name, given) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  return made;
}

export function graph(label) {
  const made = shape("svg", { class: "graph", viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img", "aria-label": label });
  made.append(shape("polygon", { class: "mem", points: "" }), shape("polyline", { class: "cpu", points: "" }));
  return made;
}

export function draw(svg, samples) {
  const rows = samples.slice(-60);
  const step = rows.length > 1 ? 100 / (rows.length - 1) : 100;
  const highest = (place, least) => Math.max(least, ...rows.map((row) => Number(row[place]) || 0));
  const line = (place, least) => {
    const top = highest(place, least);
    return rows.map((row, at) => `${(at * step).toFixed(1)},${(29 - (27 * (Number(row[place]) || 0)) / top).toFixed(1)}`).join(" ");
  };
  svg.querySelector(".mem").setAttribute("points", rows.length ? `0,30 ${line(2, 1 << 20)} 100,30` : "");
  svg.querySelector(".cpu").setAttribute("points", rows.length ? line(1, 100) : "");
}
