/* Findings of "scon explain" and "scon doctor", in plain words. */
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { Chart, hour, octets, packets } from "./chart.js";
import { Export } from "./export.js";
import { usePastOf } from "./history.js";
import { document as ask } from "./server.js";
import { Profile, Way } from "./way.js";

const titles = { ok: "ok", note: "note", warn: "warning", fail: "fails" };
export const Level = ({ level }) => html`<span class=${"level " + level}>${titles[level] || level}</span>`;

/* Rule is a rule of the packet filter, and how to find it. */
const Rule = ({ rule }) => html`<dd class="rule"><code>${rule.text}</code>
  ${!rule.table.startsWith("iptables-legacy") && html`<span class="soft">handle ${rule.handle}; <code>nft -a list chain ${rule.table} ${rule.chain}</code> shows it in its place</span>`}</dd>`;

/* whyOf leaves the rule's text to Rule. */
const whyOf = (f) => (f.why || "").replace(f.rule ? ": " + f.rule.text : "", "").replace(/^it says$/, "");

export const Findings = ({ all }) => html`<dl>${all.map((f) => html`<dt><${Level} level=${f.level}/> ${f.what}</dt>
  ${whyOf(f) && html`<dd>${whyOf(f)}</dd>`}${f.rule && html`<${Rule} rule=${f.rule}/>`}${f.remedy && html`<dd class="do">What to do: ${f.remedy}</dd>`}`)}</dl>`;

/* Past is what a container has sent and received, as far as the daemon remembers. */
function Past({ container }) {
  const [points, wrong] = usePastOf(container), [view, zoom] = useState(hour);
  if (wrong && !points.length) return html`<p class="soft">No history: ${wrong}</p>`;
  return html`<div class="past charts">${[["Packets per second", packets], ["Bytes per second", octets]].map(([title, series]) => html`<${Chart} title=${title} label=${title + " of the container"}
      series=${series} points=${points} view=${view} zoom=${(v) => zoom(v || hour)}/>`)}</div>
    <p class="soft">Drag over a chart to see a part of it, click twice to see all. <${Export} name="history-of-container" read=${() => ask("history", { container }).then((h) => h.points)}/></p>`;
}

/* Explanation answers why a subject goes express or regular. */
export function Explanation({ subject, container, connection, close }) {
  const [answer, set] = useState(null);
  useEffect(() => {
    const abort = new AbortController();
    set(null);
    ask("explain", { subject }, abort.signal).then(set, (e) => !abort.signal.aborted && set({ error: e.message }));
    return () => abort.abort();
  }, [subject]);
  return html`<aside aria-label="Explanation"><header><h2>${subject}</h2><button onClick=${close} aria-label="Close the explanation">Close</button></header>
    ${connection && html`<${Way} connection=${connection}/>`}
    <div aria-live="polite">${!answer ? html`<p class="soft">Asking ...</p>` : answer.error ? html`<p class="bad">No explanation: ${answer.error}</p>` : html`
      <p class=${"verdict " + (answer.express ? "express" : "regular")}>${answer.express ? "goes express" : "goes regular"}</p>
      <${Findings} all=${answer.findings}/>`}</div>
    ${container && html`<${Past} container=${container}/>`}
    ${container && html`<${Profile} container=${container}/>`}
  </aside>`;
}
