import { html, render, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";

const rowHeight = 28; // of style.css
const history = 300; // looks in the chart

const number = (n) => {
  if (!n) return "0";
  for (const unit of ["", "k", "M", "G", "T"]) {
    if (n < 999.5) return (unit || n >= 9.95 ? n.toPrecision(n < 99.95 ? 2 : 3) : n.toFixed(1)).replace(/\.0$/, "") + unit;
    n /= 1000;
  }
  return n.toFixed(0) + "P";
};
const percent = (part, rest) => (part + rest ? Math.floor((100 * part) / (part + rest)) + " %" : "-");
const seconds = (ms) => (ms < 1000 ? ms + " ms" : ms < 60000 ? (ms / 1000).toFixed(1) + " s" : Math.floor(ms / 60000) + " min");
const end = (addr, port) => (addr.includes(":") ? `[${addr}]` : addr) + ":" + port;
const tuple = (t) => (t.src ? end(t.src, t.sport) + "->" + end(t.dst, t.dport) : "");
const total = (c) => c.express[0].packets_per_s + c.express[1].packets_per_s;
const most = (reasons) => Object.entries(reasons).sort((a, b) => b[1] - a[1]);

/* A stream of looks; window is the part of the connections that is shown. */
function useLooks(window, paused) {
  const [state, set] = useState({ look: null, lost: false });
  useEffect(() => {
    if (paused) return;
    const source = new EventSource("events?" + new URLSearchParams(window));
    source.onmessage = (m) => {
      const look = JSON.parse(m.data); // of a daemon that does not answer, the last look stays
      set((s) => ({ look: look.error && s.look ? { ...s.look, error: look.error } : look, lost: false }));
    };
    source.onerror = () => set((s) => ({ ...s, lost: true }));
    return () => source.close();
  }, [JSON.stringify(window), paused]);
  return state;
}

/* A table whose columns are [title, text of a row, class, order]. */
function Table({ label, columns, rows, keyOf, selected, select, sort, sorted, before = 0, after = 0 }) {
  const press = (row) => (e) => {
    if (e.key === "Enter" || e.key === " ") { e.preventDefault(); select(row); }
    const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[e.key];
    if (next) { e.preventDefault(); e.currentTarget[next]?.focus(); }
  };
  const space = (n) => n > 0 && html`<tr class="space" aria-hidden="true"><td colspan=${columns.length} style=${{ height: n * rowHeight + "px" }}></td></tr>`;
  return html`<table aria-label=${label}>
    <thead><tr>${columns.map(([title, , kind, order]) => html`<th scope="col" class=${kind}
      aria-sort=${sorted && order === sorted.order ? (sorted.reverse ? "ascending" : "descending") : undefined}>
      ${order ? html`<button onClick=${() => sort(order)}>${title}${sorted && order === sorted.order ? (sorted.reverse ? " ▲" : " ▼") : ""}</button>` : title}</th>`)}</tr></thead>
    <tbody>${space(before)}${rows.map((row) => html`<tr key=${keyOf(row)} tabindex="0" aria-selected=${selected === keyOf(row)}
      onClick=${() => select(row)} onKeyDown=${press(row)}>${columns.map(([, text, kind]) => html`<td class=${kind} title=${text(row)}>${text(row)}</td>`)}</tr>`)}${space(after)}</tbody>
  </table>`;
}

const containerColumns = [
  ["Container", (c) => c.name + (c.paused ? " (paused)" : ""), "", "name"],
  ["Bridge", (c) => c.bridge || "-", "wide", "bridge"],
  ["Connections", (c) => String(c.entries), "n wide", "entries"],
  ["Express/s", (c) => number(c.express.packets_per_s), "n express", "express"],
  ["Bytes/s", (c) => number(c.express.bytes_per_s), "n", "bytes"],
  ["Regular/s", (c) => number(c.regular_packets_per_s), "n regular", "regular"],
  ["Share", (c) => percent(c.express.packets_per_s, c.regular_packets_per_s), "n", ""],
  ["Why regular", (c) => most(c.reasons_per_s).map(([r, n]) => r + " " + number(n)).join(", ") || "-", "", ""],
];
const containerValue = {
  name: (c) => c.name, bridge: (c) => c.bridge, entries: (c) => -c.entries, express: (c) => -c.express.packets_per_s,
  bytes: (c) => -c.express.bytes_per_s, regular: (c) => -c.regular_packets_per_s,
};
const connectionColumns = [
  ["Container", (c) => c.container, "", "name"],
  ["Protocol", (c) => c.proto, "wide", ""],
  ["Connection", (c) => tuple(c.orig), "", ""],
  ["Peer", (c) => c.peer || "-", "wide", ""],
  ["Way", (c) => c.way, "", "way"],
  ["State", (c) => c.state, "wide", ""],
  ["Out/s", (c) => number(c.express[0].packets_per_s), "n express", "express"],
  ["Back/s", (c) => number(c.express[1].packets_per_s), "n express", ""],
  ["Bytes/s", (c) => number(c.express[0].bytes_per_s + c.express[1].bytes_per_s), "n", "bytes"],
  ["Age", (c) => seconds(c.age_ms), "n wide", "age"],
  ["Idle", (c) => seconds(c.idle_ms), "n wide", "idle"],
  ["Lease bounded by", (c) => c.lease_bound || "-", "wide", ""],
];
const nameOf = (c) => c.proto + ":" + tuple(c.orig);

/* The layers that a packet passes; express skips those that are struck out. */
const layers = {
  wire: [["container", 0], ["port", 0], ["bridge", 1], ["IP", 1], ["Netfilter", 1], ["route, NAT", 1], ["uplink", 0]],
  bridged: [["container", 0], ["port", 0], ["bridge", 1], ["Netfilter", 1], ["port", 0], ["container", 0]],
};
layers.hairpin = layers.routed = layers.containers = [["container", 0], ["port", 0], ["bridge", 1], ["IP", 1], ["Netfilter", 1], ["route, NAT", 1], ["bridge", 1], ["port", 0], ["container", 0]];

function Way({ connection }) {
  const all = layers[connection.way] || layers.wire, w = 96, skips = connection.state === "express";
  const skipped = all.filter(([, s]) => s).map(([name]) => name).join(", ");
  return html`<div class="scroll"><svg width=${all.length * (w + 16)} height="64" role="img"
      aria-label=${skips ? "Packets skip " + skipped : "Packets pass all layers"}>
    <path class="way" d=${`M${w / 2} 12H${all.length * (w + 16) - 16 - w / 2}`}/>
    ${all.map(([name, s], i) => html`<g class=${s && skips ? "skipped" : ""} transform=${`translate(${i * (w + 16)} ${s && skips ? 24 : 8})`}>
      <rect class="box" width=${w} height="32" rx="4"/><text x=${w / 2} y="20" text-anchor="middle">${name}</text></g>`)}
  </svg></div>`;
}

function Explanation({ subject, connection, close }) {
  const [answer, set] = useState(null);
  useEffect(() => {
    const abort = new AbortController();
    set(null);
    fetch("explain?" + new URLSearchParams({ subject }), { signal: abort.signal })
      .then(async (r) => set(r.ok ? await r.json() : { error: await r.text() }))
      .catch((e) => e.name !== "AbortError" && set({ error: String(e) }));
    return () => abort.abort();
  }, [subject]);
  return html`<aside aria-live="polite"><h2>${subject} <button onClick=${close}>close</button></h2>
    ${connection && html`<${Way} connection=${connection}/>`}
    ${!answer ? html`<p class="soft">Asking ...</p>` : answer.error ? html`<p class="bad">No explanation: ${answer.error}</p>` : html`
      <p class=${answer.express ? "express" : "regular"}>${answer.express ? "goes express" : "goes regular"}</p>
      <dl>${answer.findings.map((f) => html`<dt>${f.level}: ${f.what}</dt>${f.why && html`<dd>why: ${f.why}</dd>`}${f.remedy && html`<dd>do: ${f.remedy}</dd>`}`)}</dl>`}
  </aside>`;
}

/* Packets per second over the last minutes, with changes as marks. */
function Chart({ points }) {
  const at = useRef(null), plot = useRef(null), marks = useRef([]);
  useLayoutEffect(() => {
    const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
    const axis = { stroke: () => color("--front"), grid: { stroke: () => color("--line") }, ticks: { stroke: () => color("--line") } };
    const draw = (u) => {
      u.ctx.save();
      u.ctx.strokeStyle = color("--mark");
      u.ctx.setLineDash([4, 4]);
      for (const time of marks.current) {
        const x = u.valToPos(time, "x", true);
        u.ctx.beginPath();
        u.ctx.moveTo(x, u.bbox.top);
        u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
        u.ctx.stroke();
      }
      u.ctx.restore();
    };
    const size = () => ({ width: at.current.clientWidth, height: 200 });
    plot.current = new uPlot({
      ...size(), hooks: { draw: [draw] }, cursor: { drag: { x: false, y: false } },
      axes: [axis, { ...axis, values: (_, all) => all.map(number), size: 56 }],
      scales: {
        x: { range: (_, lo, hi) => [Math.min(lo, hi - 60), hi] }, // a minute at least
        y: { range: (_, lo, hi) => [0, Math.max(1, hi * 1.05)] },
      },
      series: [{}, { label: "express/s", stroke: () => color("--express"), width: 2, value: (_, v) => number(v) },
        { label: "regular/s", stroke: () => color("--regular"), width: 2, dash: [6, 3], value: (_, v) => number(v) }],
    }, [[], [], []], at.current);
    const resize = new ResizeObserver(() => plot.current.setSize(size()));
    resize.observe(at.current);
    return () => { resize.disconnect(); plot.current.destroy(); };
  }, []);
  useEffect(() => {
    marks.current = points.filter((p) => p.changed).map((p) => p.at);
    plot.current.setData([points.map((p) => p.at), points.map((p) => p.express), points.map((p) => p.regular)]);
  }, [points]);
  const last = points[points.length - 1];
  return html`<div ref=${at} role="img" aria-label=${last ? `Packets per second: ${number(last.express)} express, ${number(last.regular)} regular` : "Packets per second"}></div>`;
}

function Reasons({ look, words }) {
  const sum = {};
  for (const reasons of [look.uplink_reasons_per_s, ...look.containers.map((c) => c.reasons_per_s)])
    for (const [name, n] of Object.entries(reasons)) sum[name] = (sum[name] || 0) + n;
  const all = most(sum);
  if (!all.length) return html`<p class="soft">Nothing went regular in this second.</p>`;
  return html`<dl>${all.map(([name, n]) => html`<dt>${number(n)}/s ${name}: ${words[name]?.text || ""}</dt>${words[name]?.do && html`<dd>do: ${words[name].do}</dd>`}`)}</dl>`;
}

function App() {
  const [paused, pause] = useState(false);
  const [filter, setFilter] = useState(""), [typed, type] = useState(""), [wrong, setWrong] = useState("");
  const [from, setFrom] = useState(0);
  const [sorted, setSorted] = useState({ order: "express", reverse: false });
  const [containers, sortContainers] = useState({ order: "express", reverse: false });
  const [selected, select] = useState(null);
  const [points, setPoints] = useState([]), [changes, setChanges] = useState([]), [words, setWords] = useState({});
  const { look, lost } = useLooks({ filter, order: sorted.order, reverse: sorted.reverse ? 1 : 0, from }, paused);

  useEffect(() => { fetch("reasons").then((r) => r.ok && r.json()).then((w) => w && setWords(w)); }, []);
  useEffect(() => {
    if (!look || look.error) return;
    const at = Date.parse(look.at) / 1000;
    if (look.interval_s) setPoints((p) => (p.length && p[p.length - 1].at >= at ? p : [...p, { at, express: look.express.packets_per_s, regular: look.regular_packets_per_s, changed: look.changes.length > 0 }].slice(-history)));
    if (look.changes.length) setChanges((c) => (c.length && c[0].at === look.changes[0].at ? c : [...look.changes, ...c].slice(0, 100)));
  }, [look]);
  useEffect(() => {
    if (typed === filter && !wrong) return;
    const t = setTimeout(async () => {
      const r = await fetch("filter?" + new URLSearchParams({ filter: typed }));
      if (r.ok) { setFilter(typed); setFrom(0); }
      setWrong(r.ok ? "" : await r.text());
    }, 200);
    return () => clearTimeout(t);
  }, [typed]);

  const toggle = (was, set) => (order) => set(was.order === order ? { order, reverse: !was.reverse } : { order, reverse: false });
  const scrolled = useRef(0);
  const scroll = (e) => {
    const row = Math.floor(e.currentTarget.scrollTop / rowHeight);
    clearTimeout(scrolled.current);
    if (look && (row < look.from || row + 20 > look.from + look.connections.length))
      scrolled.current = setTimeout(() => setFrom(Math.max(0, row - 80)), 100);
  };
  if (!look) return html`<p class="waiting" role="status">${lost ? "'scon web' does not answer; is it still running?" : "Asking the daemon ..."}</p>`;

  const value = containerValue[containers.order];
  const rows = [...look.containers].sort((a, b) => (value(a) > value(b) ? 1 : value(a) < value(b) ? -1 : a.name < b.name ? -1 : 1));
  if (containers.reverse) rows.reverse();
  const chosen = selected && look.connections.find((c) => nameOf(c) === selected);
  const state = lost ? "disconnected" : look.error ? "no answer" : paused ? "paused" : "live";
  return html`
    <header><h1>SCON</h1>
      <span role="status">${state === "live" ? "live" : html`<span class="bad">${state}</span>`}</span>
      <span>express is <b class=${look.state === "active" ? "express" : "bad"}>${look.state || "unknown"}</b>${look.why && html`<span> (${look.why})</span>`}</span>
      <span class="soft">daemon ${look.daemon_cpu_pct.toFixed(1)} % of a CPU</span>
      <button onClick=${() => pause(!paused)} aria-pressed=${paused}>${paused ? "go on" : "pause"}</button></header>
    <main>
      ${lost && html`<p class="notice" role="alert">The connection to "scon web" is lost; the page tries again. What it shows is old.</p>`}
      ${look.error && html`<p class="notice" role="alert">The daemon does not answer: ${look.error}. What the page shows is old.</p>`}
      <div class="figures">
        <div>express<b class="express">${number(look.express.packets_per_s)}/s</b>${number(look.express.bytes_per_s)}B/s</div>
        <div>regular<b class="regular">${number(look.regular_packets_per_s)}/s</b>${percent(look.express.packets_per_s, look.regular_packets_per_s)} express</div>
        <div>connections<b>${look.entries}</b>${look.containers.length} containers</div>
        <div>discarded<b>${number(look.discarded_packets_per_s)}/s</b>that rules drop</div>
      </div>
      <${Chart} points=${points}/>
      <p><label>Filter <input value=${typed} onInput=${(e) => type(e.target.value)} placeholder="web  peer:10.0.0.1  way:bridged" aria-invalid=${!!wrong}/></label> ${wrong && html`<span class="bad" role="alert">${wrong}</span>`}</p>
      <h2>Containers</h2>
      ${rows.length ? html`<div class="scroll rows"><${Table} label="Containers" columns=${containerColumns} rows=${rows} keyOf=${(c) => c.id + " " + c.dev}
        selected=${selected} select=${(c) => select(c.name)} sort=${toggle(containers, sortContainers)} sorted=${containers}/></div>`
      : html`<p class="soft">${filter ? "No container matches the filter." : "No containers yet: a container is hooked when its port joins a bridge or a route leads to it."}</p>`}
      <h2>Connections <span class="soft">${look.matching === look.total ? look.total : `${look.matching} of ${look.total}`}</span></h2>
      ${look.matching ? html`<div class="scroll rows" onScroll=${scroll}><${Table} label="Connections" columns=${connectionColumns} rows=${look.connections} keyOf=${nameOf}
        selected=${selected} select=${(c) => select(nameOf(c))} sort=${toggle(sorted, setSorted)} sorted=${sorted}
        before=${look.from} after=${look.matching - look.from - look.connections.length}/></div>`
      : html`<p class="soft">${filter ? "No connection matches the filter." : "No connections: a connection becomes a candidate after its first packets."}</p>`}
      ${selected && html`<${Explanation} subject=${selected} connection=${chosen} close=${() => select(null)}/>`}
      <h2>Why regular</h2><${Reasons} look=${look} words=${words}/>
      <h2>Changes</h2>
      ${changes.length ? html`<dl>${changes.map((c) => html`<dt>${new Date(c.at).toLocaleTimeString()} ${c.what}</dt><dd>${c.effect}</dd>`)}</dl>` : html`<p class="soft">Nothing has changed since the page was opened.</p>`}
    </main>`;
}

render(html`<${App}/>`, document.getElementById("page"));
