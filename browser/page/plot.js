// The loss over the rounds: a line of means over a band of extremes, evaluations as dots, the part since this tab
// joined in the accent. Knows nothing of the page.

import { count, loss } from "./format.js";
import { svg } from "./ring.js";

const HEIGHT = 280;
const MARGIN = { top: 22, right: 14, bottom: 34, left: 46 };
/** Width of one point of the line, in pixels. */
const COLUMN = 3;

/** About `n` round numbers from `low` to `high`. */
export function ticks(low, high, n) {
  const raw = (high - low) / Math.max(n, 1);
  if (!(raw > 0) || !Number.isFinite(raw)) return [];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const result = [];
  for (let i = Math.ceil(low / step - 1e-6); i * step <= high + step * 1e-6; i += 1) result.push(i * step);
  return result;
}

/** Mean, least and largest loss of at most `columns` equal stretches of rounds; null losses are skipped. */
export function buckets(history, columns) {
  const points = history.filter(([, value]) => Number.isFinite(value));
  if (!points.length) return [];
  const [first, last] = [points[0][0], points[points.length - 1][0]];
  const width = Math.max((last - first + 1) / Math.max(columns, 1), 1);
  const result = [];
  for (const [round, value] of points) {
    const index = Math.floor((round - first) / width);
    let bucket = result[result.length - 1];
    if (!bucket || bucket.index !== index) result.push((bucket = { index, n: 0, rounds: 0, sum: 0, low: value, high: value }));
    bucket.n += 1;
    bucket.rounds += round;
    bucket.sum += value;
    bucket.low = Math.min(bucket.low, value);
    bucket.high = Math.max(bucket.high, value);
  }
  return result.map(({ n, rounds, sum, low, high }) => ({ round: rounds / n, mean: sum / n, low, high }));
}

export class Plot {
  constructor(figure, reading) {
    this.reading = reading;
    this.data = { history: [], evaluations: [], since: null };
    this.width = 0;
    this.picture = svg("svg", { role: "img", "aria-label": "Loss: no rounds yet.", height: HEIGHT });
    figure.prepend(this.picture);
    this.hover = null;
    this.picture.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.picture.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width === this.width) return;
      this.width = width;
      this.render();
    }).observe(figure);
  }

  /** `history` is [[round, loss]], `evaluations` [{round, loss, accuracy}], `since` the first round of this tab. */
  draw(data) {
    this.data = data;
    this.render();
  }

  render() {
    if (!this.width) return;
    const { history, evaluations, since } = this.data;
    const dots = evaluations.filter((dot) => Number.isFinite(dot.loss));
    const [inner, tall] = [this.width - MARGIN.left - MARGIN.right, HEIGHT - MARGIN.top - MARGIN.bottom];
    const line = buckets(history, Math.floor(inner / COLUMN));
    this.picture.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.picture.setAttribute("width", this.width);

    const values = [...line.flatMap(({ low, high }) => [low, high]), ...dots.map((dot) => dot.loss)];
    const rounds = [...line.map(({ round }) => round), ...dots.map((dot) => dot.round)];
    this.line = line;
    if (!values.length) {
      this.picture.replaceChildren(
        svg("path", { class: "grid", d: `M${MARGIN.left} ${MARGIN.top + tall}h${inner}` }),
        text("axis", this.width / 2, HEIGHT / 2, "middle", "The curve begins with the first round."),
      );
      this.describe();
      return;
    }
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (low > 0 && low < 0.35 * high) low = 0;
    const padding = (high - low || Math.abs(high) || 1) * 0.04;
    [low, high] = [low === 0 ? 0 : low - padding, high + padding];
    const first = Math.min(...rounds);
    const last = Math.max(...rounds, first + 10);
    const x = (round) => MARGIN.left + ((round - first) / (last - first)) * inner;
    const y = (value) => MARGIN.top + (1 - (value - low) / (high - low)) * tall;
    this.scale = { x, y };

    const parts = [];
    for (const tick of ticks(low, high, 4)) {
      parts.push(svg("path", { class: "grid", d: `M${MARGIN.left} ${y(tick).toFixed(1)}h${inner}` }));
      parts.push(text("tick", MARGIN.left - 10, y(tick) + 4, "end", String(Number(tick.toPrecision(6)))));
    }
    for (const tick of ticks(first, last, Math.max(2, Math.min(6, inner / 130)))) {
      if (!Number.isInteger(tick) || x(tick) > this.width - 70) continue;
      parts.push(text("tick", x(tick), HEIGHT - 12, "middle", count(tick)));
    }
    parts.push(text("axis", this.width - MARGIN.right, HEIGHT - 12, "end", "round"));
    parts.push(text("axis", MARGIN.left - 10, 10, "end", "loss"));

    const xy = ({ round, mean }) => `${x(round).toFixed(1)} ${y(mean).toFixed(1)}`;
    if (line.length > 1) {
      const upper = line.map(({ round, high: value }) => `${x(round).toFixed(1)} ${y(value).toFixed(1)}`);
      const lower = line.map(({ round, low: value }) => `${x(round).toFixed(1)} ${y(value).toFixed(1)}`).reverse();
      parts.push(svg("path", { class: "band", d: `M${[...upper, ...lower].join("L")}Z` }));
    }
    const split = Number.isFinite(since) ? line.findIndex(({ round }) => round >= since) : -1;
    const before = split < 0 ? line : line.slice(0, split + 1);
    if (before.length) parts.push(svg("path", { class: "curve", d: `M${before.map(xy).join("L")}` }));
    if (split >= 0) {
      const after = line.slice(Math.max(split, 0));
      parts.push(svg("path", { class: "curve mine", d: `M${after.map(xy).join("L")}` }));
    }
    for (const dot of dots) parts.push(svg("circle", { class: "dot", cx: x(dot.round).toFixed(1), cy: y(dot.loss).toFixed(1), r: 3.5 }));
    this.cursor = svg("path", { class: "cursor", d: "" });
    this.picture.replaceChildren(...parts, this.cursor);
    this.point(this.hover);
    this.describe();
  }

  /** The reading under the pointer at `offset` pixels, or of the last round. */
  point(offset) {
    this.hover = offset;
    const { evaluations } = this.data;
    const line = this.line ?? [];
    if (!line.length) return;
    let at = line[line.length - 1];
    if (offset !== null) {
      const distance = (bucket) => Math.abs(this.scale.x(bucket.round) - offset);
      at = line.reduce((best, bucket) => (distance(bucket) < distance(best) ? bucket : best), at);
      this.cursor.setAttribute("d", `M${this.scale.x(at.round).toFixed(1)} ${MARGIN.top}V${HEIGHT - MARGIN.bottom}`);
      this.reading.textContent = `${loss(at.mean)} at round ${count(Math.round(at.round))}`;
      return;
    }
    this.cursor.setAttribute("d", "");
    const evaluation = evaluations[evaluations.length - 1];
    const accuracy = Number.isFinite(evaluation?.accuracy) ? `, ${(100 * evaluation.accuracy).toFixed(1)} % right` : "";
    this.reading.textContent = loss(at.mean) + (evaluation ? `, on data kept aside ${loss(evaluation.loss)}${accuracy}` : "");
  }

  /** The same in words, for those who do not see the picture. */
  describe() {
    const { evaluations } = this.data;
    const line = this.line;
    if (!line.length) {
      this.picture.setAttribute("aria-label", "Loss: no rounds yet.");
      return;
    }
    const [first, last] = [line[0], line[line.length - 1]];
    const evaluation = evaluations[evaluations.length - 1];
    this.picture.setAttribute("aria-label",
      `Loss over the rounds, from ${loss(first.mean)} at round ${count(Math.round(first.round))} to ${loss(last.mean)} at round ${count(Math.round(last.round))}.`
      + (evaluation ? ` On data kept aside ${loss(evaluation.loss)} after round ${count(evaluation.round)}.` : ""));
  }
}

function text(name, x, y, anchor, content) {
  const element = svg("text", { class: name, x: x.toFixed(1), y: y.toFixed(1), "text-anchor": anchor });
  element.textContent = content;
  return element;
}
