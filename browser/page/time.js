// Where the time goes, as two lanes: what is computed, and what travels meanwhile and after. Knows nothing of the page.

import { percent } from "./format.js";

/**
 * Where each part begins and how long it is, as parts of the time. `exchange` is what nothing is computed in, `hidden` what
 * goes on while something is: so an exchange begins before computing ends by as much as is hidden.
 */
export function lanes({ compute, exchange, hidden }) {
  const within = (value) => Math.min(Math.max(value || 0, 0), 1);
  const computing = within(compute);
  const behind = Math.min(within(hidden), computing);
  return {
    compute: [0, computing],
    hidden: [computing - behind, behind],
    exchange: [computing, Math.min(within(exchange), 1 - computing)],
  };
}

/** The shares of the time, of rounds as in docs/events.md; the same sums as those of /status. */
export function shares(rounds, mine) {
  const sum = (of) => rounds.reduce((all, round) => all + (of(round) || 0), 0);
  const [seconds, compute, exchange] = ["seconds", "compute_seconds", "reduce_seconds"].map((name) => sum((round) => round[name]));
  if (!(seconds > 0)) return null;
  const own = sum(({ members }) => members?.find(({ peer }) => peer === mine)?.weight);
  const hidden = Math.min(Math.max(compute + exchange - seconds, 0), exchange);
  return {
    compute: compute / seconds,
    exchange: (exchange - hidden) / seconds,
    hidden: hidden / seconds,
    speed_up: own > 0 && compute > 0 ? (sum(({ samples }) => samples) / own) * (compute / seconds) : null,
  };
}

export class Time {
  constructor(figure) {
    this.figure = figure;
    this.parts = Object.fromEntries(["compute", "hidden", "exchange"].map((name) => [name, Object.assign(document.createElement("i"), { className: name })]));
    const lane = (...parts) => {
      const element = Object.assign(document.createElement("div"), { className: "lane" });
      element.append(...parts);
      return element;
    };
    this.picture = Object.assign(document.createElement("div"), { className: "lanes", role: "img" });
    this.picture.append(lane(this.parts.compute), lane(this.parts.hidden, this.parts.exchange));
    figure.prepend(this.picture);
  }

  /** `mine`: whether it is this tab's time. */
  draw(time, mine) {
    for (const [name, [from, length]] of Object.entries(lanes(time))) {
      Object.assign(this.parts[name].style, { left: `${100 * from}%`, width: `${100 * length}%` });
    }
    this.figure.classList.toggle("mine", mine);
    this.picture.setAttribute("aria-label", `Computing takes ${percent(time.compute)} of the time, ${percent(time.hidden)} of it while sums travel, and waiting for sums takes ${percent(time.exchange)}.`);
  }
}
