// The loss over the rounds: a line of means on a band of extremes, evaluations as dots. Knows nothing of the page.

import { count, loss } from "./format.js";
import { svg } from "./ring.js";

const HEIGHT = 280;
const [TOP, RIGHT, BOTTOM, LEFT] = [22, 14, 34, 46];
/** Width of one point of the line, in pixels. */
const COLUMN = 3;

/** About `n` round numbers from `low` to `high`. */
export function ticks(low, high, n) {
  const raw = (high - low) / n;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(6)));
}

/** Mean, least and largest loss of at most `columns` equal stretches of rounds; rounds without a loss are skipped. */
export function buckets(history, columns) {
  const points = history.filter(([, value]) => Number.isFinite(value));
  if (!points.length) return [];
  const from = points[0][0];
  const width = Math.max((points.at(-1)[0] - from + 1) / columns, 1);
  const groups = [];
  for (const point of points) (groups[Math.floor((point[0] - from) / width)] ??= []).push(point);
  return groups.filter(Boolean).map((group) => {
    const [mean, values] = [(i) => group.reduce((sum, point) => sum + point[i], 0) / group.length, group.map((point) => point[1])];
    return { round: mean(0), mean: mean(1), low: Math.min(...values), high: Math.max(...values) };
  });
}

export class Plot {
  constructor(figure) {
    this.width = 0;
    this.picture = svg("svg", { role: "img", height: HEIGHT });
    figure.prepend(this.picture);
    new ResizeObserver(([{ contentRect }]) => {
      if (Math.round(contentRect.width) === this.width) return;
      this.width = Math.round(contentRect.width);
      if (this.data) this.draw(this.data);
    }).observe(figure);
  }

  /** `history` is [[round, loss]], `evaluations` [{round, loss, metrics}], `since` the first round of this tab. */
  draw({ history, evaluations, since }) {
    this.data = { history, evaluations, since };
    if (!this.width) return;
    const [inner, tall] = [this.width - LEFT - RIGHT, HEIGHT - TOP - BOTTOM];
    const line = buckets(history, Math.floor(inner / COLUMN));
    const dots = evaluations.filter((dot) => Number.isFinite(dot.loss));
    this.picture.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.picture.setAttribute("aria-label", inWords(line, evaluations.at(-1)));
    if (!line.length) {
      this.picture.replaceChildren(text(this.width / 2, HEIGHT / 2, "middle", "The curve begins with the first round."));
      return;
    }
    const values = [...line.flatMap(({ low, high }) => [low, high]), ...dots.map((dot) => dot.loss)];
    let [low, high] = [Math.min(...values), Math.max(...values)];
    const padding = 0.04 * (high - low || Math.abs(high) || 1);
    low = low > 0 && low < 0.35 * high ? 0 : low - padding;
    high += padding;
    const [from, to] = [line[0].round, Math.max(line.at(-1).round, line[0].round + 10)];
    const x = (round) => LEFT + ((round - from) / (to - from)) * inner;
    const y = (value) => TOP + (1 - (value - low) / (high - low)) * tall;
    const path = (name, points) => svg("path", { class: name, d: `M${points.map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("L")}` });
    const means = line.map(({ round, mean }) => [round, mean]);
    const split = since === null ? line.length : line.findIndex(({ round }) => round >= since);

    this.picture.replaceChildren(
      ...ticks(low, high, 4).flatMap((tick) => [svg("path", { class: "grid", d: `M${LEFT} ${y(tick)}h${inner}` }), text(LEFT - 10, y(tick) + 4, "end", String(tick))]),
      ...ticks(from, to, Math.min(6, inner / 90)).filter((tick) => Number.isInteger(tick) && x(tick) < this.width - 70)
        .map((tick) => text(x(tick), HEIGHT - 12, "middle", count(tick))),
      text(this.width - RIGHT, HEIGHT - 12, "end", "round"),
      text(LEFT - 10, 10, "end", "loss"),
      path("band", [...line.map(({ round, high: top }) => [round, top]), ...line.map(({ round, low: bottom }) => [round, bottom]).reverse()]),
      path("curve", split < 0 ? means : means.slice(0, split + 1)),
      ...(split >= 0 && split < line.length ? [path("curve mine", means.slice(split))] : []),
      ...dots.filter(({ round }) => round >= from).map((dot) => svg("circle", { class: "dot", cx: x(dot.round), cy: y(dot.loss), r: 3.5 })),
    );
  }
}

/** The picture for those who do not see it. */
function inWords(line, evaluation) {
  const point = ({ round, mean }) => `${loss(mean)} at round ${count(round)}`;
  return line.length ? `Loss over the rounds, from ${point(line[0])} to ${point(line.at(-1))}.`
    + (evaluation ? ` On held-out data ${loss(evaluation.loss)} after round ${count(evaluation.round)}.` : "") : "Loss: no rounds yet.";
}

function text(x, y, anchor, content) {
  return svg("text", { x, y, "text-anchor": anchor }, content);
}
