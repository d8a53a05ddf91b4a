/* Numbers and names as people read them. */

export const number = (n) => {
  if (!n) return "0";
  for (const unit of ["", "k", "M", "G", "T"]) {
    if (n < 999.5) return (unit || n >= 9.95 ? n.toPrecision(n < 99.95 ? 2 : 3) : n.toFixed(1)).replace(/\.0$/, "") + unit;
    n /= 1000;
  }
  return n.toFixed(0) + "P";
};
export const percent = (part, rest) => (part + rest ? Math.floor((100 * part) / (part + rest)) + " %" : "-");
export const millis = (ms) => (ms < 10 ? ms.toFixed(ms < 0.05 ? 0 : 1) + " ms" : ms < 1000 ? ms.toFixed(0) + " ms" : ms < 60000 ? (ms / 1000).toFixed(1) + " s" : Math.floor(ms / 60000) + " min");
export const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });

const end = (addr, port) => (addr.includes(":") ? `[${addr}]` : addr) + ":" + port;
export const tuple = (t) => (t.src ? end(t.src, t.sport) + "->" + end(t.dst, t.dport) : "");
export const subjectOf = (c) => c.proto + ":" + tuple(c.orig);
export const both = (pair, field) => pair[0][field] + pair[1][field];
export const mostFrequent = (counts) => Object.entries(counts).sort((a, b) => b[1] - a[1]);
