// Small line charts in SVG.  Lines stretch with the page; all texts are HTML beside them.

import { h, s } from "./dom.js";
import { clock } from "./format.js";

const WIDTH = 600;
const HEIGHT = 120;
const GAP_FACTOR = 2.5;

/**
 * Return a chart.  `series` are [{name, points: [[ms, value or null]], tone}] over the same times; `format` returns the
 * text of a value; `interval` is the usual time between points: a longer one is a gap; `base` 2 is for bytes.  The
 * legend has the values at the pointer, else the newest; the label has the newest, the least and the most.
 */
export function chart({ title, series, format, interval, base = 10 }) {
  const times = series[0]?.points.map(([at]) => at) ?? [];
  const known = series.flatMap(({ points }) => points.map(([, value]) => value).filter((value) => value !== null));
  const head = (readings, at) =>
    h(
      "figcaption",
      null,
      h("span", { class: "chart-title" }, title),
      h("span", { class: "chart-legend" }, at, readings.map(({ name, tone, text }) => h("span", { class: `legend ${tone}` }, name ? `${name} ` : "", h("b", null, text)))),
    );
  if (times.length < 2 || known.length === 0) {
    return h("figure", { class: "chart" }, head([], null), h("p", { class: "chart-empty" }, times.length < 2 ? "Collecting: the line begins with the second sample." : "Nothing was measured in this time."));
  }
  const top = niceTop(Math.max(...known), base);
  const [first, last] = [times[0], times.at(-1)];
  const x = (at) => ((at - first) / (last - first)) * WIDTH;
  const y = (value) => HEIGHT - (value / top) * (HEIGHT - 4) - 1;
  const readingsAt = (index) => series.map(({ name, tone, points }) => ({ name, tone, text: format(points[index][1]) }));
  const summary = series.map(({ name, points }) => {
    const values = points.map(([, value]) => value).filter((value) => value !== null);
    return values.length ? `${name || title}: now ${format(points.at(-1)[1])}, least ${format(Math.min(...values))}, most ${format(Math.max(...values))}` : "";
  });
  const cursor = s("line", { class: "cursor", x1: 0, x2: 0, y1: 0, y2: HEIGHT });
  const plot = s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" },
    [0.25, 0.5, 0.75].map((share) => s("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * share, y2: HEIGHT * share })),
    series.map(({ points, tone }, index) => {
      const d = lineOf(points, x, y, interval);
      return [index === 0 && series.length === 1 ? s("path", { class: `area ${tone}`, d: areaOf(points, x, y, interval) }) : null, s("path", { class: `line ${tone}`, d })];
    }),
    cursor,
  );
  const show = (figure, index) => {
    const line = figure.querySelector("line.cursor");
    line.classList.toggle("shown", index !== null);
    if (index !== null) for (const name of ["x1", "x2"]) line.setAttribute(name, x(times[index]));
    const shown = index ?? times.length - 1;
    figure.querySelector("figcaption").replaceWith(head(readingsAt(shown), index === null ? null : h("span", { class: "chart-at" }, clock(times[index]))));
  };
  const nearest = (figure, clientX) => {
    const box = figure.querySelector("svg").getBoundingClientRect();
    const at = first + ((clientX - box.left) / box.width) * (last - first);
    return times.reduce((best, each, index) => (Math.abs(each - at) < Math.abs(times[best] - at) ? index : best), 0);
  };
  return h(
    "figure",
    {
      class: "chart",
      onpointermove: (event) => show(event.currentTarget, nearest(event.currentTarget, event.clientX)),
      onpointerleave: (event) => show(event.currentTarget, null),
    },
    head(readingsAt(times.length - 1), null),
    h("div", { class: "plot", role: "img", "aria-label": `${title} from ${clock(first)} to ${clock(last)}. ${summary.join(". ")}` }, plot, h("span", { class: "chart-top", "aria-hidden": "true" }, format(top))),
    h("div", { class: "chart-times", "aria-hidden": "true" }, h("span", null, clock(first)), h("span", null, clock(last))),
  );
}

/** Return the runs of points without gaps; points without a value end a run. */
function runs(points, interval) {
  const found = [];
  let run = [];
  let before = null;
  for (const [at, value] of points) {
    if (value === null || (before !== null && at - before > interval * GAP_FACTOR)) {
      if (run.length) found.push(run);
      run = [];
    }
    if (value !== null) run.push([at, value]);
    before = at;
  }
  if (run.length) found.push(run);
  return found;
}

function lineOf(points, x, y, interval) {
  return runs(points, interval)
    .map((run) => {
      const path = run.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      return run.length === 1 ? `${path}h1` : path;
    })
    .join("");
}

function areaOf(points, x, y, interval) {
  return runs(points, interval)
    .map((run) => `M${x(run[0][0]).toFixed(1)} ${HEIGHT}${run.map(([at, value]) => `L${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("")}L${x(run.at(-1)[0]).toFixed(1)} ${HEIGHT}Z`)
    .join("");
}

/** Return a round number not below `value`: 1, 2 or 5 times a power of ten, or a power of two for bytes. */
function niceTop(value, base) {
  if (value <= 0) return 1;
  if (base === 2) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= value);
}
