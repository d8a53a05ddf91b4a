/* Findings of "scon explain" and "scon doctor", in plain words. */
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { document } from "./server.js";
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

/* Explanation answers why a subject goes express or regular. */
export function Explanation({ subject, container, connection, close }) {
  const [answer, set] = useState(null);
  useEffect(() => {
    const abort = new AbortController();
    set(null);
    document("explain", { subject }, abort.signal).then(set, (e) => !abort.signal.aborted && set({ error: e.message }));
    return () => abort.abort();
  }, [subject]);
  return html`<aside aria-label="Explanation"><header><h2>${subject}</h2><button onClick=${close} aria-label="Close the explanation">Close</button></header>
    ${connection && html`<${Way} connection=${connection}/>`}
    <div aria-live="polite">${!answer ? html`<p class="soft">Asking ...</p>` : answer.error ? html`<p class="bad">No explanation: ${answer.error}</p>` : html`
      <p class=${"verdict " + (answer.express ? "express" : "regular")}>${answer.express ? "goes express" : "goes regular"}</p>
      <${Findings} all=${answer.findings}/>`}</div>
    ${container && html`<${Profile} container=${container}/>`}
  </aside>`;
}
