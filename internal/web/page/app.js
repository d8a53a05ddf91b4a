import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Chart, hour, octets, packets } from "./chart.js";
import { Export } from "./export.js";
import { Explanation } from "./findings.js";
import { usePast } from "./history.js";
import { Changes, Doctor, Pipe, Reasons, Rules, Section, Startup, Uplinks, useDoctor } from "./sections.js";
import { all, document as ask, request, useLooks } from "./server.js";
import { connectionColumns, containerColumns, Legend, portOf, Table, useTable } from "./table.js";
import { Talk } from "./talk.js";
import { bytes, clock, number, percent, subjectOf } from "./text.js";

const mostChanges = 100;
const spans = [["5 min", { span: 300 }], ["15 min", { span: 900 }], ["1 h", hour]];
const cpu = (v) => (v > 0 && v < 0.05 ? "<0.1" : v.toFixed(v < 9.95 ? 1 : 0)) + " %";

const processor = [["softirqs", "softirq", "--mark", undefined, cpu], ["saved (estimate)", "saved", "--express", [2, 4], cpu], ["daemon", "daemon", "--soft", [6, 3], cpu]];

/* useChanges is the list of changes. */
function useChanges(look) {
  const [changes, set] = useState([]), pid = useRef(0);
  useEffect(() => {
    if (!look || look.error) return;
    if (pid.current && pid.current !== look.pid && !look.restarted)
      look.changes.unshift({ at: look.at, kind: "daemon", what: "another daemon answers: pid " + look.pid, effect: look.entries + " connections are express or composing" });
    pid.current = look.pid;
    if (look.changes.length) set((c) => (c.length && c[0].at === look.changes[0].at ? c : [...look.changes, ...c].slice(0, mostChanges)));
  }, [look]);
  return changes;
}

/* useFilter is the filter that the server accepts: [filter, text as typed, set it, error]. */
function useFilter() {
  const [filter, set] = useState(""), [typed, type] = useState(""), [wrong, setWrong] = useState("");
  useEffect(() => {
    if (typed === filter && !wrong) return;
    const t = setTimeout(() => request("filter", { filter: typed }).then(() => { set(typed); setWrong(""); }, (e) => setWrong(e.message)), 150);
    return () => clearTimeout(t);
  }, [typed]);
  return [filter, typed, type, wrong];
}

const Locked = () => html`<div class="state"><h1>SCON</h1><p>This page shows nothing without its token.</p>
  <p>Run <code>sudo scon web</code> on the machine, as root or as a member of <code>socket_group</code>, and open the whole address that it prints.
  After a restart of the daemon, or of <code>scon web</code>, there is a new one.</p></div>`;

function Summary({ look }) {
  const { packets_per_s: express, bytes_per_s: octets } = look.express;
  return html`<div class="figures cards">
    <div>Express<b class="express">${number(express)}/s</b>${bytes(octets)}/s</div>
    <div>Regular<b class="regular">${number(look.regular_packets_per_s)}/s</b>${percent(express, look.regular_packets_per_s)} of the packets go express</div>
    <div>Softirqs<b>${cpu(look.softirq_cpu_pct)}</b>of one CPU, all packets of this machine</div>
    <div title="Express packets times 2.2 us: what a packet of a container costs the softirqs without SCON, less with it, as counted by 'scon bench quick' on the machine of its documentation">
      Saved, an estimate<b>about ${cpu(look.saved_cpu_pct_estimate)}</b>of one CPU: ${number(express)} packets x 2.2 us</div>
    <div>Connections<b>${number(look.entries)}</b>of ${look.container_table.total} containers' ports</div>
    <div>Discarded<b>${number(look.discarded_packets_per_s)}/s</b>packets that rules drop</div>
  </div>`;
}

function Header({ look, state, paused, pause }) {
  return html`<header class="top"><h1>SCON</h1>
    <span role="status" class=${"pill " + (state === "live" ? "ok" : state === "paused" ? "note" : "fail")}>${state}</span>
    ${["live", "frozen"].includes(state) ? html`<span>express is <b class=${look.state === "active" ? "express" : "bad"}>${look.state || "unknown"}</b>${look.why && html` <span>(${look.why})</span>`}</span>`
      : html`<span class="soft">express was ${look.state || "unknown"}</span>`}
    <span class="soft">daemon ${cpu(look.daemon_cpu_pct)} of a CPU, pid ${look.pid}</span>
    <button onClick=${() => pause(!paused)} aria-pressed=${paused}>${paused ? "Go on" : "Freeze"}</button></header>`;
}

function App() {
  const [paused, pause] = useState(false);
  const [filter, typed, type, wrong] = useFilter();
  const [containersQuery, containers] = useTable("containers_", "express");
  const [connectionsQuery, connections] = useTable("connections_", "express");
  const query = { filter, ...containersQuery, ...connectionsQuery };
  const { look, lost, locked, looking } = useLooks(query, paused);
  const points = usePast(look, looking), changes = useChanges(look), [view, zoom] = useState(spans[0][1]);
  const [doctor, doctorWrong, askDoctor] = useDoctor(look);
  const [words, setWords] = useState({});
  const [selected, select] = useState(null);
  const there = !!look && !!look.containers;
  const subject = useRef(null), panel = useRef(null);

  useEffect(() => { if (there) ask("reasons").then(setWords, () => {}); }, [there]);
  useEffect(() => { containers.show(0); connections.show(0); }, [filter]);
  useEffect(() => {
    const top = selected && panel.current.getBoundingClientRect().top;
    if (selected && (top < 0 || top > 0.6 * innerHeight)) panel.current.scrollIntoView();
  }, [selected && selected.where + selected.key]);

  if (locked) return html`<${Locked}/>`;
  if (!there) return html`<div class="state"><h1>SCON</h1><p role="status">${lost || (look && look.error) ? (lost || look.error) + ". The page tries again." : "Asking the daemon ..."}</p></div>`;

  const explainContainer = (where) => (c) => select({ where, key: portOf(c), subject: c.name, container: c.dev });
  const explainConnection = (c) => select({ where: "connections", key: subjectOf(c), subject: subjectOf(c), container: c.container, connection: c });
  const explainTyped = (e) => { e.preventDefault(); const text = subject.current.value.trim(); if (text) select({ where: "form", key: "", subject: text }); };
  const chosen = selected && (look.connections.find((c) => subjectOf(c) === selected.key) || selected.connection);
  const state = lost ? "disconnected" : look.error ? "no answer" : paused ? "frozen" : "live";
  const explanation = (where) => selected && selected.where === where && html`<div class="panel" ref=${panel}><${Explanation} subject=${selected.subject} container=${selected.container} connection=${chosen} close=${() => select(null)}/></div>`;
  const count = (part) => html`<span class="soft">${part.matching === part.total ? part.total : `${part.matching} of ${part.total}`}</span>`;
  const none = (what, empty) => html`<p class="empty">${filter ? `No ${what} matches the filter.` : empty}</p>`;
  return html`<${Header} look=${look} state=${state} paused=${paused} pause=${pause}/>
    <main class=${lost || look.error ? "old" : ""}>
      ${lost && html`<p class="notice" role="alert">No connection: ${lost}. The page tries again; what it shows is old.</p>`}
      ${!lost && look.error && html`<p class="notice" role="alert">No answer: ${look.error}. The page tries again; what it shows is old.</p>`}
      ${look.state === "paused" && html`<p class="notice mild">SCON is paused: every packet goes regular. <code>scon resume</code> ends that.</p>`}
      <${Summary} look=${look}/>
      <div class="bar times" role="group" aria-label="Time of the charts">${spans.map(([name, v]) => html`<button class="word" aria-pressed=${view === v} onClick=${() => zoom(v)}>${name}</button>`)}
        <span class=${"soft" + (view.from ? "" : " hint")}>${view.from ? html`${clock(view.from * 1000)} to ${clock(view.to * 1000)}; a button or two clicks end the zoom` : "drag over a chart to zoom"}</span>
        <${Export} name="history" read=${() => ask("history").then((h) => h.points)}/></div>
      <div class="charts">${[["Packets per second", packets], ["Bytes per second", octets], ["Processor time, of one CPU", processor]].map(([title, series]) => html`<${Chart} title=${title} label=${title}
        series=${series} points=${points} view=${view} zoom=${(v) => zoom(v || spans[0][1])}/>`)}</div>
      <form class="bar" onSubmit=${explainTyped}>
        <label>Filter <input type="search" value=${typed} onInput=${(e) => type(e.target.value)} placeholder="web  peer:10.0.0.1  direction:in" aria-invalid=${!!wrong} spellcheck=${false}/></label>
        <label>Explain <input ref=${subject} name="subject" placeholder="a container or 172.17.0.2:43512" spellcheck=${false}/></label>
        <button>Explain</button>
        ${wrong && html`<span class="bad" role="alert">${wrong}</span>`}
      </form>
      ${explanation("form")}
      <h2>Containers ${count(look.container_table)} <${Export} name="containers" read=${() => all(query).then((e) => e.containers)}/></h2>
      ${look.containers.length ? html`<${Table} label="Containers" columns=${containerColumns} rows=${look.containers} keyOf=${portOf} part=${look.container_table}
        selected=${selected && selected.key} select=${explainContainer("containers")} state=${containers}/>`
      : none("container", "No containers yet: a container is hooked when its port joins a bridge or a route leads to it.")}
      ${explanation("containers")}
      <h2>Connections ${count(look.connection_table)} <${Export} name="connections" read=${() => all(query).then((e) => e.connections)}/></h2>
      ${look.connections.length ? html`<${Table} label="Connections" columns=${connectionColumns} rows=${look.connections} keyOf=${subjectOf} part=${look.connection_table}
        selected=${selected && selected.key} select=${explainConnection} state=${connections}/><${Legend} rows=${look.connections}/>`
      : none("connection", "No connections: a connection becomes a candidate after its first packets.")}
      ${explanation("connections")}
      <${Section} title="Who talks to whom" open=${true}>${(shown) => shown && html`<${Talk} talk=${look.talk} choose=${type}/>`}<//>
      <${Section} title="Why regular" open=${true}>${() => html`<${Reasons} look=${look} words=${words} select=${explainContainer("reasons")} filter=${type}/>${explanation("reasons")}<${Uplinks} look=${look}/><${Rules} doctor=${doctor} ask=${askDoctor}/>`}<//>
      <${Section} title="Changes" open=${true}>${() => html`<${Changes} all=${changes}/>`}<//>
      <${Section} title="Starts of containers">${(shown) => html`<${Startup} shown=${shown && !paused}/>`}<//>
      <${Section} title="Pipe">${(shown) => html`<${Pipe} shown=${shown && !paused}/>`}<//>
      <${Section} title="Doctor">${(shown) => html`<${Doctor} shown=${shown} doctor=${doctor} wrong=${doctorWrong} ask=${askDoctor}/>`}<//>
    </main>`;
}

const page = document.getElementById("page");
page.replaceChildren(); // "Asking the daemon ..."
render(html`<${App}/>`, page);
