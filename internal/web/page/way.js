/* The way of a packet: the layers that it passes, and those that express skips. */
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { document } from "./server.js";

const layers = {
  wire: ["container", "port", "bridge", "IP", "Netfilter", "route, NAT", "uplink"],
  bridged: ["container", "port", "bridge", "Netfilter", "port", "container"],
};
layers.hairpin = layers.routed = layers.containers = ["container", "port", "bridge", "IP", "Netfilter", "route, NAT", "bridge", "port", "container"];
const skippable = (layer) => !["container", "port", "uplink"].includes(layer);

export function Way({ connection }) {
  const all = layers[connection.way].slice(), skips = connection.state === "express";
  if (connection.way === "wire" && connection.direction === "in") all.reverse();
  const row = 28, w = 104, height = all.length * row - 4;
  const skipped = (layer) => skips && skippable(layer);
  const names = all.filter(skippable).join(", ");
  const words = skips ? "Packets skip " + names : connection.state === "discard" ? "Packets are dropped at the port, as the firewall does" : "Packets pass all layers";
  return html`<p class=${skips ? "express" : "soft"}>${words}.</p>
    <svg class="way" width=${2 * w + 24} height=${height} viewBox=${`0 0 ${2 * w + 24} ${height}`} role="img" aria-label=${words}>
    <path class=${skips ? "skip" : ""} d=${`M${w / 2} 12V${height - 12}`}/>
    ${all.map((layer, i) => html`<g class=${skipped(layer) ? "skipped" : ""} transform=${`translate(${skipped(layer) ? w + 24 : 0} ${i * row})`}>
      <rect width=${w} height=${row - 4} rx="5"/><text x=${w / 2} y="16" text-anchor="middle">${layer}</text></g>`)}
  </svg>`;
}

/* Profile has the packets of a container traced, when asked for. */
export function Profile({ container }) {
  const [state, set] = useState({}), picture = useRef(null);
  useEffect(() => set({}), [container]);
  useEffect(() => { if (state.svg) picture.current.showModal(); }, [state.svg]);
  const measure = () => {
    set({ running: true });
    document("profile", { container }).then(({ svg }) => set({ svg }), (e) => set({ error: e.message }));
  };
  return html`<div class="profile">
    <button onClick=${measure} disabled=${state.running}>${state.running ? "Tracing packets ..." : "Measure the way of its packets"}</button>
    ${state.error && html`<p class="soft" role="alert">No profile: ${state.error}</p>`}
    ${state.svg && html`<dialog ref=${picture} aria-label="The way of its packets"><img alt="Time of a packet in each layer" src=${"data:image/svg+xml," + encodeURIComponent(state.svg)}/>
      <form method="dialog"><button>Close</button></form></dialog> <button onClick=${() => picture.current.showModal()}>Show it again</button>`}
  </div>`;
}
