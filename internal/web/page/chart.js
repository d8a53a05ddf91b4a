/* Lines over time, with gaps where nothing is known and marks where something has changed.
   uPlot is a global. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { bytes, clock, number } from "./text.js";

export const packets = [["express", "express", "--express", undefined, number], ["regular", "regular", "--regular", [6, 3], number]];
export const octets = [["express", "bytes", "--express", undefined, bytes]];
export const hour = { span: 3700 };

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

/* drawMarks draws a line through the chart at each time. */
const drawMarks = (marks) => (u) => {
  u.ctx.save();
  u.ctx.strokeStyle = u.ctx.fillStyle = color("--mark");
  u.ctx.setLineDash([3, 4]);
  const size = 4 * devicePixelRatio;
  for (const time of marks.current) {
    const x = u.valToPos(time, "x", true);
    if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
    u.ctx.beginPath();
    u.ctx.moveTo(x, u.bbox.top);
    u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
    u.ctx.stroke();
    u.ctx.beginPath();
    u.ctx.moveTo(x - size, u.bbox.top);
    u.ctx.lineTo(x + size, u.bbox.top);
    u.ctx.lineTo(x, u.bbox.top + 1.6 * size);
    u.ctx.fill();
  }
  u.ctx.restore();
};

const longestGap = 3; // seconds

/* gapped has a point without values wherever the points say nothing: before one that is
   longer than usual, and where some are missing. */
const gapped = (points) => points.flatMap((p, i) => {
  const before = i ? points[i - 1].at : p.at;
  return i && (p.gap || p.at - before > Math.max(longestGap, 1.5 * p.seconds)) ? [{ at: (before + p.at) / 2 }, p] : [p];
});

/* Chart draws series [label, field of a point, color, dash, text of a value]. view is the
   time to show, {from, to} in seconds, or {span} up to now; zoom gets another one. */
export function Chart({ title, label, series, points, view, zoom }) {
  const at = useRef(null), plot = useRef(null), marks = useRef([]), shown = useRef(view), held = useRef(false);
  shown.current = view;
  const theme = matchMedia("(prefers-color-scheme: dark)"), [dark, turn] = useState(theme.matches);
  const text = series[0][4];
  useLayoutEffect(() => {
    const axis = { stroke: () => color("--soft"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const select = (u) => {
      const { left, width } = u.select;
      if (width < 4) return;
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      zoom({ from: u.posToVal(left, "x"), to: u.posToVal(left + width, "x") });
    };
    const size = () => ({ width: at.current.clientWidth, height: 170 });
    plot.current = new uPlot({
      ...size(), hooks: { draw: [drawMarks(marks)], setSelect: [select] }, cursor: { drag: { x: true, y: false, setScale: false } },
      axes: [{ ...axis, space: 70, size: 26, values: (_, all) => all.map((t) => clock(t * 1000)) }, { ...axis, values: (_, all) => all.map(text), size: 50 }],
      scales: {
        x: { range: (_, lo, hi) => (shown.current.from ? [shown.current.from, shown.current.to] : [Math.max(Math.min(lo, hi - 60), hi - shown.current.span), hi]) }, // a minute at least
        y: { range: (_, lo, hi) => [0, Math.max(1, hi * 1.1)] },
      },
      legend: { markers: { width: 2 } },
      series: [{ value: (_, v) => (v ? clock(v * 1000) : "") },
        ...series.map(([label, , stroke, dash, text]) => ({ label, stroke: () => color(stroke), width: 2, dash, points: { show: false }, value: (_, v) => (v == null ? "" : text(v)) }))],
    }, [[], ...series.map(() => [])], at.current);
    const resize = new ResizeObserver(() => plot.current.setSize(size()));
    resize.observe(at.current);
    const hold = () => { held.current = true; }, release = () => { held.current = false; };
    plot.current.over.addEventListener("mousedown", hold);
    addEventListener("mouseup", release);
    const turned = () => turn(theme.matches);
    theme.addEventListener("change", turned);
    return () => { resize.disconnect(); removeEventListener("mouseup", release); theme.removeEventListener("change", turned); plot.current.destroy(); };
  }, [dark]);
  useEffect(() => {
    if (held.current) return; // new data would end the selection
    const all = gapped(points);
    marks.current = points.filter((p) => p.changed).map((p) => p.at);
    const u = plot.current;
    u.setData([all.map((p) => p.at), ...series.map(([, field]) => all.map((p) => p[field]))]);
    at.current.dataset.gaps = all.length - points.length;
    if (u.cursor.idx == null && all.length) u.setLegend({ idx: all.length - 1 }); // the latest, until one points at another
  }, [points, dark, view]);
  const last = points[points.length - 1];
  return html`<figure><figcaption>${title}</figcaption><div ref=${at} role="img" onDblClick=${() => zoom(null)}
    aria-label=${label + (last ? ": " + series.map(([name, field, , , text]) => name + " " + (last[field] == null ? "unknown" : text(last[field]))).join(", ") : "")}></div></figure>`;
}
