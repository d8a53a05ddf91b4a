/* Files of what the page shows. */
import { html, useState } from "./vendor/htm-preact.js";

/* cell is a field of CSV. A spreadsheet takes text that begins like a formula for one, and
   names come from whoever makes containers: an apostrophe makes it text. */
function cell(value) {
  if (typeof value === "number") return String(value);
  let text = String(value ?? "");
  if (/^[\s\0]*[=+\-@|%]/.test(text) || /^[\t\r\n]/.test(text)) text = "'" + text;
  return /[",;\t\r\n']/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

/* flat is a row with the fields of objects and lists in it as fields of their own. */
function flat(row, prefix = "", into = {}) {
  for (const [name, value] of Object.entries(row))
    if (value && typeof value === "object") flat(value, prefix + name + ".", into);
    else into[prefix + name] = value;
  return into;
}

export function csv(rows) {
  const all = rows.map((r) => flat(r)), names = [...new Set(all.flatMap(Object.keys))];
  return [names, ...all.map((r) => names.map((n) => r[n]))].map((line) => line.map(cell).join(",") + "\r\n").join("");
}

function save(name, type, text) {
  const a = document.createElement("a");
  a.href = URL.createObjectURL(new Blob([text], { type }));
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 60000);
}

/* Export saves what read, which may wait, returns: a list of rows. */
export function Export({ name, read }) {
  const [wrong, say] = useState("");
  const to = (kind, type, text) => async () => {
    try {
      const rows = await read();
      save(`scon-${name}-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.${kind}`, type, text(rows));
      say("");
    } catch (e) {
      say(e.message);
    }
  };
  return html`<span class="export"><button class="word" aria-label=${"Save " + name + " as CSV"} onClick=${to("csv", "text/csv", csv)}>CSV</button>
    <button class="word" aria-label=${"Save " + name + " as JSON"} onClick=${to("json", "application/json", (rows) => JSON.stringify(rows, null, 1))}>JSON</button>
    ${wrong && html` <span class="bad" role="alert">not saved: ${wrong}</span>`}</span>`;
}
