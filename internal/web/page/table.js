/* Tables of which the page has only the rows around those in sight. */
import { html, useRef, useState } from "./vendor/htm-preact.js";
import { both, bytes, millis, mostFrequent, number, origin, percent, tuple } from "./text.js";

const rowHeight = 28; // of style.css

/* useTable is a table's order and place: [what to ask for, what Table needs]. */
export function useTable(prefix, order) {
  const [want, set] = useState({ order, reverse: false, from: 0 });
  const query = { [prefix + "order"]: want.order, [prefix + "reverse"]: want.reverse ? 1 : 0, [prefix + "from"]: want.from };
  const sort = (order) => set((w) => ({ order, reverse: w.order === order && !w.reverse, from: 0 }));
  return [query, { want, sort, show: (from) => set((w) => ({ ...w, from })) }];
}

/* Table has columns [title, text of a row, class, order, markup of a row if it is more
   than the text]. part says which rows of how many
   there are; without it, all. */
export function Table({ label, columns, rows, keyOf, selected, select, state, part }) {
  const timer = useRef(0), box = useRef(null);
  const { want, sort, show } = state || {};
  const first = part ? part.from : 0, all = part ? part.matching : rows.length;
  const scroll = (e) => {
    if (!part) return;
    const row = Math.floor(e.currentTarget.scrollTop / rowHeight);
    clearTimeout(timer.current);
    if ((row < first && first > 0) || (row + 30 > first + rows.length && first + rows.length < all))
      timer.current = setTimeout(() => show(Math.max(0, row - 80)), 60);
  };
  const press = (row) => (e) => {
    if (e.key === "Enter" || e.key === " ") { e.preventDefault(); select(row); }
    const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[e.key];
    if (next) { e.preventDefault(); e.currentTarget[next]?.focus(); }
  };
  const order = (by) => { sort(by); box.current.scrollTop = 0; };
  const tab = rows.some((r) => keyOf(r) === selected) ? selected : rows[0] && keyOf(rows[0]); // one row is in the tab order
  const sorted = (by) => want && by === want.order && by !== "";
  const space = (n) => n > 0 && html`<tr class="space" aria-hidden="true"><td colspan=${columns.length} style=${{ height: n * rowHeight + "px" }}></td></tr>`;
  return html`<div class="scroll rows" ref=${box} onScroll=${scroll}><table aria-label=${label} aria-rowcount=${all}>
    <thead><tr>${columns.map(([title, , kind, by]) => html`<th scope="col" class=${kind}
      aria-sort=${sorted(by) ? (want.reverse ? "ascending" : "descending") : undefined}>
      ${by && sort ? html`<button onClick=${() => order(by)}>${title}${sorted(by) ? (want.reverse ? " ▲" : " ▼") : ""}</button>` : title}</th>`)}</tr></thead>
    <tbody>${space(first)}${rows.map((row) => html`<tr key=${keyOf(row)} tabindex=${select && keyOf(row) === tab ? 0 : -1}
      aria-selected=${select ? selected === keyOf(row) : undefined} class=${select ? "choice" : ""}
      onClick=${select && (() => select(row))} onKeyDown=${select && press(row)}>${columns.map(([, text, kind, , markup]) => html`<td class=${kind} title=${text(row)}>${(markup || text)(row)}</td>`)}</tr>`)}${space(all - first - rows.length)}</tbody>
  </table></div>`;
}

export const portOf = (c) => c.id + " " + c.dev;

/* kept is what stands behind the name of a container that is paused, or that the settings keep regular. */
const kept = (c) => c.paused ? " (paused)" : c.withheld ? " (kept regular)" : "";

/* Name is a container's name, with what it was made from beside it. */
const Name = (c) => html`<bdi>${c.name}</bdi>${kept(c)}${origin(c) && html` <bdi class="soft origin">${origin(c)}</bdi>`}`;

export const containerColumns = [
  ["Container", (c) => c.name + kept(c) + (origin(c) ? ", " + origin(c) : ""), "name", "name", Name],
  ["Bridge", (c) => c.bridge || "routed", "wide", "bridge"],
  ["Port", (c) => c.dev, "wide", "port"],
  ["Connections", (c) => number(c.entries), "n wide", "entries"],
  ["Express/s", (c) => number(c.express.packets_per_s), "n express", "express"],
  ["Bytes/s", (c) => bytes(c.express.bytes_per_s), "n wide", "bytes"],
  ["Regular/s", (c) => number(c.regular_packets_per_s), "n regular", "regular"],
  ["Express", (c) => percent(c.express.packets_per_s, c.regular_packets_per_s), "n", "share"],
  ["Why regular", (c) => mostFrequent(c.reasons_per_s).map(([r, n]) => r + " " + number(n)).join(", ") || "nothing is", "wide", "reason"],
];

/* peerOf is the container at the other end. */
const peerOf = (c) => c.peer || "outside";
const regularOf = (c) => (c.regular ? number(both(c.regular, "packets_per_s")) : "unknown");

export const connectionColumns = [
  ["Container", (c) => c.container, "wide", "name"],
  ["Direction", (c) => c.direction, "wide", "direction"],
  ["Protocol", (c) => c.proto, "wide", "proto"],
  ["Connection", (c) => tuple(c.orig), "long", "connection"],
  ["Peer", peerOf, "wide", "peer"],
  ["Way", (c) => c.way, "wide", "way"],
  ["State", (c) => c.state, "wide", "state"],
  ["Out/s", (c) => number(c.express[0].packets_per_s), "n express", "out"],
  ["Back/s", (c) => number(c.express[1].packets_per_s), "n express", "back"],
  ["Bytes/s", (c) => bytes(both(c.express, "bytes_per_s")), "n", "bytes"],
  ["Regular/s", regularOf, "n regular wide", "regular"],
  ["Age", (c) => millis(c.age_ms), "n wide", "age"],
  ["Idle", (c) => millis(c.idle_ms), "n wide", "idle"],
  ["Lease bound", (c) => c.lease_bound || "no lease", "wide lease", "lease", (c) => html`<div>${c.lease_bound || "no lease"}</div>`],
];

/* Legend says what words in the table of connections mean that stand for something missing. */
export function Legend({ rows }) {
  const outside = rows.some((c) => !c.peer), unknown = rows.some((c) => !c.regular);
  return html`<p class="soft legend">${outside && html`Peer <b>outside</b>: the other end is no container of this daemon. `}
    ${unknown && html`Regular/s <b>unknown</b>: conntrack does not count this connection's packets (<code>net.netfilter.nf_conntrack_acct</code>), or the page has seen it for less than a second.`}</p>`;
}
