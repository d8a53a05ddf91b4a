/* Lines over time, with marks where something has changed. uPlot is a global. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { clock } from "./text.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

/* drawMarks draws a line through the chart at each time. */
const drawMarks = (marks) => (u) => {
  u.ctx.save();
  u.ctx.strokeStyle = u.ctx.fillStyle = color("--mark");
  u.ctx.setLineDash([3, 4]);
  const size = 4 * devicePixelRatio;
  for (const time of marks.current) {
    const x = u.valToPos(time, "x", true);
    if (x < u.bbox.left) continue;
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

/* Chart draws series [label, field of a point, color, dash, text of a value]. */
export function Chart({ title, label, series, points }) {
  const at = useRef(null), plot = useRef(null), marks = useRef([]);
  const theme = matchMedia("(prefers-color-scheme: dark)"), [dark, turn] = useState(theme.matches);
  const text = series[0][4];
  useLayoutEffect(() => {
    const axis = { stroke: () => color("--soft"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const size = () => ({ width: at.current.clientWidth, height: 170 });
    plot.current = new uPlot({
      ...size(), hooks: { draw: [drawMarks(marks)] }, cursor: { drag: { x: false, y: false } },
      axes: [{ ...axis, space: 70, size: 26, values: (_, all) => all.map((t) => clock(t * 1000)) }, { ...axis, values: (_, all) => all.map(text), size: 50 }],
      scales: {
        x: { range: (_, lo, hi) => [Math.min(lo, hi - 60), hi] }, // a minute at least
        y: { range: (_, lo, hi) => [0, Math.max(1, hi * 1.1)] },
      },
      legend: { markers: { width: 2 } },
      series: [{ value: (_, v) => (v ? clock(v * 1000) : "") },
        ...series.map(([label, , stroke, dash, text]) => ({ label, stroke: () => color(stroke), width: 2, dash, points: { show: false }, value: (_, v) => (v == null ? "" : text(v)) }))],
    }, [[], ...series.map(() => [])], at.current);
    const resize = new ResizeObserver(() => plot.current.setSize(size()));
    resize.observe(at.current);
    const turned = () => turn(theme.matches);
    theme.addEventListener("change", turned);
    return () => { resize.disconnect(); theme.removeEventListener("change", turned); plot.current.destroy(); };
  }, [dark]);
  useEffect(() => {
    marks.current = points.filter((p) => p.changed).map((p) => p.at);
    const u = plot.current;
    u.setData([points.map((p) => p.at), ...series.map(([, field]) => points.map((p) => p[field]))]);
    if (u.cursor.idx == null && points.length) u.setLegend({ idx: points.length - 1 }); // the latest, until one points at another
  }, [points, dark]);
  const last = points[points.length - 1];
  return html`<figure><figcaption>${title}</figcaption><div ref=${at} role="img"
    aria-label=${label + (last ? ": " + series.map(([name, field, , , text]) => name + " " + text(last[field])).join(", ") : "")}></div></figure>`;
}
