/* What the page shows below the tables. Sections that ask for more do so while they are open. */
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { document, perSecond, usePolled } from "./server.js";
import { Findings, Level } from "./findings.js";
import { Table } from "./table.js";
import { bytes, clock, millis, mostFrequent, number, percent } from "./text.js";

const mostRows = 200; // of a table that is not sorted by the server

/* Section can be opened; children gets whether it is. */
export function Section({ title, open, children }) {
  const [shown, show] = useState(!!open);
  return html`<details open=${open} onToggle=${(e) => show(e.currentTarget.open)}><summary><h2>${title}</h2></summary>${children(shown)}</details>`;
}

const Figures = ({ all }) => html`<div class="figures">${all.map(([name, value, more]) => html`<div>${name}<b>${value}</b>${more}</div>`)}</div>`;

const matters = 0.01; // share of all packets from which on something is recommended

/* Reasons says why packets went regular in the last second, and in which containers most. */
export function Reasons({ look, words, select, filter }) {
  const all = mostFrequent(look.reasons_per_s), packets = look.express.packets_per_s + look.regular_packets_per_s;
  if (!all.length) return html`<p class="soft">No packet of a container went regular in the last second.</p>`;
  const most = (reason) => look.containers.filter((c) => c.reasons_per_s[reason]).sort((a, b) => b.reasons_per_s[reason] - a.reasons_per_s[reason]).slice(0, 5);
  return html`<div class="reasons">${all.map(([reason, n]) => html`<div><b>${number(n)}/s</b><div>
    <p><strong>${words[reason]?.text || reason}</strong> <button class="word" onClick=${() => filter("reason:" + reason)} title="Show the containers with this reason">${reason}</button></p>
    ${words[reason]?.do && n >= matters * packets && html`<p class="do">What to do: ${words[reason].do}</p>`}
    ${most(reason).length > 0 && html`<p class="soft">${most(reason).map((c) => html`<button class="word" onClick=${() => select(c)} title="Explain">${c.name} ${number(c.reasons_per_s[reason])}/s</button> `)}</p>`}
  </div></div>`)}</div>
  <p class="soft">Together ${number(look.regular_packets_per_s)}/s, ${percent(look.regular_packets_per_s, look.express.packets_per_s)} of the packets.</p>`;
}

/* Uplinks says which packets went regular at the uplinks: those of the containers once more, and the host's own. */
export function Uplinks({ look }) {
  const all = mostFrequent(look.uplink_reasons_per_s);
  return all.length > 0 && html`<p class="soft">At the uplinks, where these packets pass again and the host's own do, too: ${all.map(([reason, n]) => reason + " " + number(n) + "/s").join(", ")}.</p>`;
}

/* Rules lists the rules that keep connections regular, as the doctor finds them. */
export function Rules({ doctor, ask }) {
  if (!doctor) return "";
  const all = doctor.findings.filter((f) => f.rule);
  return html`<h3>Rules that judge single packets <button class="word" onClick=${ask}>look again</button></h3>
    ${all.length ? html`<${Findings} all=${all}/>` : html`<p class="soft">None: no rule keeps connections regular.</p>`}`;
}

export const Changes = ({ all }) => (all.length ? html`<ol class="changes">${all.map((c) => html`<li><time>${clock(c.at)}</time><div><strong>${c.what}</strong><br/>${c.effect}</div></li>`)}</ol>`
  : html`<p class="soft">Nothing has changed since the page was opened. Changes are marks on the time axes, too.</p>`);

/* quantile of sorted values. */
const quantile = (all, q) => (all.length ? millis(all[Math.min(all.length - 1, Math.floor(q * all.length))]) : "-");
const stageNames = { netns: "network namespace", add_cni: "whole CNI ADD", cgroup: "runtime's create", attach_if: "device", start_vm: "runtime's start" };
const minute = 60000;

/* Startup is the network agent: starts, pools, and the stages of the last minute's starts. */
export function Startup({ shown }) {
  const next = useRef(-1), ended = useRef([]);
  const [is, was, wrong] = usePolled("startup", shown, async (path, query, signal) => {
    const state = await document(path, query, signal);
    const from = next.current < 0 ? 2 ** 53 : next.current; // nothing that ended before
    const stages = await document("stages", { from }, signal);
    if (next.current >= 0) ended.current.push(...stages.events.map((e) => ({ stage: e.stage, ms: (e.end_ns - e.begin_ns) / 1e6, at: performance.now() })));
    next.current = stages.next;
    ended.current = ended.current.filter((e) => e.at > performance.now() - minute);
    return state;
  });
  if (wrong) return html`<p class="soft">${wrong}</p>`;
  if (!is) return html`<p class="soft">Asking ...</p>`;
  const inPlace = (s) => Object.values(s.in_place || {}).reduce((a, b) => a + b, 0);
  const times = (stage) => ended.current.filter((e) => e.stage === stage).map((e) => e.ms).sort((a, b) => a - b);
  const stages = Object.keys(stageNames).filter((name) => is.stages[name]).map((name) => ({ name, ...is.stages[name], times: times(name) }));
  return html`<${Figures} all=${[
      ["starts", number(perSecond(is, was, (s) => s.handed_over + inPlace(s))) + "/s", `${is.handed_over} from a pool, ${inPlace(is)} in place`],
      ["attached", is.attachments.length, "devices of containers"],
      ["whole CNI ADD", quantile(times("add_cni"), 0.5), "median of the last minute"]]}/>
    <${Table} label="Stages of starts" keyOf=${(s) => s.name} rows=${stages} columns=${[
      ["Stage", (s) => stageNames[s.name], ""], ["Inside", (s) => s.inside, "n"], ["Waiting", (s) => s.waiting, "n"], ["Ended", (s) => s.ended, "n wide"],
      ["Late", (s) => s.late, "n wide"], ["Last minute", (s) => s.times.length, "n"], ["Median", (s) => quantile(s.times, 0.5), "n"], ["99 %", (s) => quantile(s.times, 0.99), "n"]]}/>
    ${is.networks.length ? html`<${Table} label="Pools" keyOf=${(n) => n.name} rows=${is.networks} columns=${[
      ["Network", (n) => n.name, ""], ["Kind", (n) => n.kind, "wide"], ["Addresses", (n) => n.addresses, "n"], ["Ready", (n) => n.pool?.ready ?? "-", "n"], ["Target", (n) => n.pool?.target ?? "-", "n"],
      ["Missed", (n) => n.pool?.missed ?? "-", "n"], ["Last failure", (n) => n.pool?.failure || "-", "wide"]]}/>` : html`<p class="soft">No networks yet: one becomes known by its first container.</p>`}`;
}

/* Pipe is the broker: its connections, engines and bytes. */
export function Pipe({ shown }) {
  const [is, was, wrong] = usePolled("pipe", shown);
  if (wrong) return html`<p class="soft">${wrong}</p>`;
  if (!is) return html`<p class="soft">Asking ...</p>`;
  const before = new Map((was ? was.connections : []).map((c) => [c.id, c]));
  const rate = (c, end) => (before.has(c.id) ? (1000 * (c[end].sent_bytes - before.get(c.id)[end].sent_bytes)) / (is.at - was.at) : 0);
  const rows = is.connections.map((c) => ({ ...c, out: rate(c, "client"), back: rate(c, "server") })).sort((a, b) => b.out + b.back - a.out - a.back).slice(0, mostRows);
  const party = (p) => p.command + "/" + p.pid;
  return html`<${Figures} all=${[
      ["sent", bytes(perSecond(is, was, (p) => p.sent_bytes)) + "/s", `${bytes(is.sent_bytes)} since the start`],
      ["connections", is.connections.length, `of ${is.processes} processes`],
      ["memory", bytes(is.memory_bytes), `of ${bytes(is.memory_limit)} for rings`],
      ["engines", is.engines.length, is.engines.join(", ")]]}/>
    ${mostFrequent(is.refused || {}).map(([why, n]) => html`<p class="soft">${n} connections refused: ${why}</p>`)}
    ${rows.length ? html`<${Table} label="Connections of the pipe" keyOf=${(c) => c.id} rows=${rows} columns=${[
      ["Client", (c) => party(c.client), ""], ["Server", (c) => party(c.server), ""], ["Name", (c) => c.name, "wide"], ["Engine", (c) => c.engine, ""],
      ["Out/s", (c) => bytes(c.out), "n"], ["Back/s", (c) => bytes(c.back), "n"], ["Age", (c) => millis(c.age_ms), "n wide"], ["State", (c) => (c.over ? "over" : "open"), "wide"]]}/>`
    : html`<p class="soft">No connections of the pipe.</p>`}`;
}

const doctorAgain = 11000; // ms; the server examines the machine every 10 s at most

/* useDoctor is the doctor's list: [list, error, ask]. It is asked for at first, when the
   rules have changed, and by ask. */
export function useDoctor(look) {
  const [state, set] = useState([null, ""]), due = useRef(0);
  const ask = () => document("doctor").then((d) => set([d, ""]), (e) => set([null, e.message]));
  const there = !!look && !!look.containers;
  useEffect(() => { if (there) ask(); }, [there]);
  useEffect(() => {
    if (!there || due.current || !look.changes.some((c) => c.kind === "rules")) return;
    due.current = setTimeout(() => { due.current = 0; ask(); }, doctorAgain);
  }, [look]);
  return [...state, ask];
}

const weight = { fail: 0, warn: 1, note: 2, ok: 3 };

export function Doctor({ shown, doctor, wrong, ask }) {
  useEffect(() => { if (shown) ask(); }, [shown]);
  if (wrong) return html`<p class="bad">The doctor did not answer: ${wrong}</p>`;
  if (!doctor) return html`<p class="soft">Examining ...</p>`;
  const all = [...doctor.capabilities].sort((a, b) => weight[a.level] - weight[b.level]);
  return html`<p class="soft">Linux ${doctor.kernel} <button onClick=${ask}>Examine again</button></p>
    <div class="scroll rows"><table aria-label="Doctor"><tbody>${all.map((c) => html`<tr><td><${Level} level=${c.level}/></td><td>${c.name}</td>
      <td class="flow">${c.found}${c.level !== "ok" && c.without ? html`<br/><span class="soft">without it: ${c.without}</span>` : ""}${c.remedy ? html`<br/><span class="do">What to do: ${c.remedy}</span>` : ""}</td></tr>`)}</tbody></table></div>
    <${Findings} all=${doctor.findings.filter((f) => f.level !== "ok")}/>
    <p class="soft">${doctor.findings.filter((f) => f.level === "ok").length} more findings are ok.</p>`;
}
