/* What the charts show: the daemon's history, and what the page has seen since. */
import { useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { document as ask } from "./server.js";

const kept = 4200; // points: an hour of seconds and the hour before it in the daemon's
const longestLook = 3; // seconds between two looks, beyond which the daemon did not answer
const longestPoint = 15; // of the history, likewise

/* pointOf is a point of the history as the charts have it. */
const pointOf = (p) => ({
  at: Date.parse(p.at) / 1000, seconds: p.seconds, gap: p.seconds > longestPoint, regular: p.regular_packets / p.seconds, express: p.express_packets / p.seconds, bytes: p.express_bytes / p.seconds,
});

/* lookOf is a look as the charts have it. */
const lookOf = (look) => ({
  at: Date.parse(look.at) / 1000, seconds: look.interval_s, gap: look.interval_s > longestLook, express: look.express.packets_per_s, bytes: look.express.bytes_per_s, regular: look.regular_packets_per_s,
  softirq: look.softirq_cpu_pct, saved: look.saved_cpu_pct_estimate, daemon: look.daemon_cpu_pct, changed: look.changes.length > 0,
});

/* merge puts older points before and between those that are there. */
function merge(points, older) {
  const all = [...points];
  for (const p of older) if (!points.some((q) => p.at > q.at - q.seconds + 0.5 && p.at - p.seconds < q.at - 0.5)) all.push(p);
  return all.sort((a, b) => a.at - b.at).slice(-kept);
}

/* usePast is the machine's points: the daemon's since the page did not look, and looks.
   again changes when the page has not looked for a while. */
export function usePast(look, again) {
  const [points, set] = useState([]);
  useEffect(() => {
    if (!look || look.error || !look.interval_s) return;
    const p = lookOf(look);
    set((all) => (all.length && all[all.length - 1].at >= p.at ? all : [...all, p].slice(-kept)));
  }, [look]);
  const there = !!look && !!look.containers;
  useEffect(() => {
    if (there) ask("history").then((h) => set((all) => merge(all, h.points.map(pointOf))), () => {}); // charts then begin with the page
  }, [there, again]);
  return points;
}

const askAgain = 2000; // ms

/* usePastOf is the points of a container: [points, what is wrong]. */
export function usePastOf(container) {
  const [state, set] = useState([[], ""]), since = useRef("");
  useEffect(() => {
    since.current = "";
    set([[], ""]);
    if (!container) return;
    const abort = new AbortController();
    const next = () => ask("history", { container, since: since.current }, abort.signal).then((h) => {
      if (h.points.length) since.current = h.points[h.points.length - 1].at;
      set(([all]) => [[...all, ...h.points.map(pointOf)].slice(-kept), ""]);
    }, (e) => !abort.signal.aborted && set(([all]) => [all, e.message]));
    next();
    const timer = setInterval(() => globalThis.document.hidden || next(), askAgain);
    return () => { clearInterval(timer); abort.abort(); };
  }, [container]);
  return state;
}
