/* Who talks to whom: a map, and totals by peer, port and protocol. The server bounds them. */
import { html } from "./vendor/htm-preact.js";
import { Export } from "./export.js";
import { bytes, number, percent } from "./text.js";

const row = 30, box = 210, gap = 300, longest = 30; // of the map; letters of a name

const short = (name) => { const letters = [...name]; return letters.length > longest ? letters.slice(0, longest - 1).join("") + "…" : name; };

/* Map draws containers on the left, their peers on the right, and a line for what they send
   each other, the wider the more bytes. */
function Map({ talk, choose }) {
  const height = row * Math.max(talk.containers.length, talk.peers.length), most = Math.max(1, ...talk.links.map((l) => l.express.bytes_per_s));
  const top = (list) => (height - row * list.length) / 2, y = (list, i) => top(list) + row * i + row / 2;
  const node = (list, x, key) => list.map((t, i) => html`<g class=${t.rest ? "rest" : "node"} transform=${`translate(${x} ${y(list, i)})`}
      onClick=${t.rest ? undefined : () => choose(key + ":" + t.name)}>
    <title>${t.name}: ${t.connections} connections, ${number(t.express.packets_per_s)} packets/s, ${bytes(t.express.bytes_per_s)}/s</title>
    <rect y="-12" width=${box} height="24" rx="5"/><text x=${box / 2} y="4" text-anchor="middle" unicode-bidi="isolate">${short(t.name)}</text></g>`);
  const said = talk.links.slice(0, 20).map((l) => `${talk.containers[l.container].name} with ${talk.peers[l.peer].name}: ${bytes(l.express.bytes_per_s)}/s`).join("; ");
  return html`<div class="scroll map"><svg width=${2 * box + gap} height=${height} viewBox=${`0 0 ${2 * box + gap} ${height}`} role="img" aria-label=${"Who talks to whom. " + said}>
    ${talk.links.map((l) => { const a = y(talk.containers, l.container), b = y(talk.peers, l.peer), x = box + gap;
      return html`<path class=${l.express.bytes_per_s ? "talks" : ""} d=${`M${box} ${a}C${box + gap / 2} ${a} ${x - gap / 2} ${b} ${x} ${b}`} stroke-width=${1 + 9 * Math.sqrt(l.express.bytes_per_s / most)}>
        <title>${talk.containers[l.container].name} and ${talk.peers[l.peer].name}: ${l.connections} connections, ${number(l.express.packets_per_s)} packets/s, ${bytes(l.express.bytes_per_s)}/s</title></path>`; })}
    ${node(talk.containers, 0, "container")}${node(talk.peers, box + gap, "peer")}
  </svg></div>`;
}

/* Totals are lists of what connections with a peer, port or protocol in common send. */
function Totals({ title, list }) {
  const all = list.reduce((sum, t) => sum + t.express.bytes_per_s, 0);
  return html`<div><h3>${title} <${Export} name=${title.toLowerCase().replaceAll(" ", "-")} read=${() => list}/></h3>
    <div class="scroll rows"><table aria-label=${title}><thead><tr><th scope="col">${{ "By peer": "Peer", "By port": "Port", "By protocol": "Protocol" }[title]}</th><th scope="col" class="n">Connections</th><th scope="col" class="n">Packets/s</th><th scope="col" class="n">Bytes/s</th><th scope="col" class="n">Share</th></tr></thead>
    <tbody>${list.map((t) => html`<tr key=${t.name}><td title=${t.name}><bdi>${t.name}</bdi></td><td class="n">${number(t.connections)}</td><td class="n express">${number(t.express.packets_per_s)}</td>
      <td class="n">${bytes(t.express.bytes_per_s)}</td><td class="n">${percent(t.express.bytes_per_s, all - t.express.bytes_per_s)}</td></tr>`)}</tbody></table></div></div>`;
}

export function Talk({ talk, choose }) {
  if (!talk.links.length) return html`<p class="soft">No connections, or none that the filter selects.</p>`;
  return html`<p class="soft">Express bytes of both directions, of the connections that the filter selects. A click on a name filters by it.</p>
    <${Map} talk=${talk} choose=${choose}/>
    <div class="totals"><${Totals} title="By peer" list=${talk.peers}/><${Totals} title="By port" list=${talk.ports}/><${Totals} title="By protocol" list=${talk.protocols}/></div>`;
}
