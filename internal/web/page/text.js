/* Numbers and names as people read them. Numbers have the form of internal/numbers. */

const decimal = (n) => (n < 99.95 ? n.toFixed(1) : n.toFixed(0));
function scaled(n) {
  if (n < 999.5) return [n, ""];
  for (const prefix of "kMGTP") if ((n /= 1000) < 999.5) return [n, prefix];
  return [n / 1000, "E"];
}
export function number(count) {
  const [n, prefix] = scaled(count || 0);
  return prefix ? decimal(n) + prefix : n && n < 0.05 ? "<0.1" : n < 9.95 && n % 1 ? n.toFixed(1) : n.toFixed(0);
}
export function bytes(count) {
  const [n, prefix] = scaled(count || 0);
  return (prefix ? decimal(n) : number(n)) + " " + prefix + "B";
}
export function percent(part, rest) {
  const p = (100 * part) / (part + rest);
  if (!(part + rest)) return "-";
  if (!part || !rest) return part ? "100 %" : "0 %";
  return (p < 0.05 ? "<0.1" : p < 0.95 ? p.toFixed(1) : p >= 98.95 ? Math.min(p, 99.9).toFixed(1) : p.toFixed(0)) + " %";
}
export function millis(ms) {
  const tenths = (unit) => decimal(Math.floor((10 * ms) / unit) / 10);
  if (ms < 1000) return (ms < 10 && ms % 1 >= 0.05 ? ms.toFixed(1) : ms.toFixed(0)) + " ms";
  return ms < 6e4 ? tenths(1e3) + " s" : ms < 36e5 ? tenths(6e4) + " min" : ms < 48 * 36e5 ? tenths(36e5) + " h" : tenths(864e5) + " d";
}
export const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });

const end = (addr, port) => (addr.includes(":") ? `[${addr}]` : addr) + ":" + port;
export const tuple = (t) => (t.src ? end(t.src, t.sport) + "->" + end(t.dst, t.dport) : "");
export const subjectOf = (c) => c.proto + ":" + tuple(c.orig);
export const both = (pair, field) => pair[0][field] + pair[1][field];
export const mostFrequent = (counts) => Object.entries(counts).sort((a, b) => b[1] - a[1]);
/* origin is what a container was made from: its Compose service and image. */
export const origin = (c) => [c.service && (c.project ? c.project + "/" : "") + c.service, c.image].filter(Boolean).join(", ");
