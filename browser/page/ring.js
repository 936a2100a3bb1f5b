// The ring: one arc for each member, clockwise in ring order, as long as its share of the round. This tab's arc is
// at the top and has the accent. Arcs grow in when a peer joins and fade when it is gone. Knows nothing of the page.

import { count, percent, plural, short } from "./format.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const RADIUS = 96;
const LABEL = 123;
/** More labels than this would run into each other. */
const MAX_LABELS = 12;
/** How long a peer that is gone stays visible, in milliseconds. */
const FAREWELL_MS = 2600;

/** Makes an SVG element. */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Where each member's arc begins and how long it is, in degrees clockwise; `mine` is centred at the top. */
export function arcs(members, mine) {
  const n = members.length;
  if (!n) return [];
  const gap = n === 1 ? 0 : Math.min(3, 72 / n);
  const total = members.reduce((sum, member) => sum + Math.max(member.weight, 0), 0);
  // Who contributed nothing is a member all the same: it keeps a sliver.
  const least = total ? 0.012 : 1;
  const sizes = members.map(({ weight }) => Math.max(total ? weight / total : 0, least));
  const sum = sizes.reduce((a, b) => a + b, 0);
  const lengths = sizes.map((size) => (size / sum) * (360 - n * gap));
  let at = 0;
  const placed = members.map((member, i) => {
    const start = at + gap / 2;
    at += lengths[i] + gap;
    return { peer: member.peer, share: total ? member.weight / total : 0, start, length: lengths[i] };
  });
  const own = placed.find(({ peer }) => peer === mine);
  const turn = own ? own.start + own.length / 2 : 0;
  return placed.map((arc) => ({ ...arc, start: arc.start - turn }));
}

export class Ring {
  constructor(figure) {
    this.members = new Map();
    this.tracks = svg("g", { transform: "rotate(-90)" });
    this.labels = svg("g", { class: "labels" });
    this.done = svg("circle", { class: "done", r: 74, pathLength: 360, "stroke-dasharray": "0 360" });
    this.number = svg("text", { class: "number", y: 10 });
    this.unit = svg("text", { class: "unit", y: 28 });
    this.over = svg("text", { class: "unit", y: -30 });
    this.tracks.append(svg("circle", { class: "bed", r: RADIUS }), svg("circle", { class: "whole", r: 74 }), this.done);
    this.picture = svg("svg", { viewBox: "-170 -146 340 292", role: "img", "aria-label": "The ring" },
      this.tracks, this.labels, this.over, this.number, this.unit);
    figure.prepend(this.picture);
  }

  /** Draws members in ring order. `progress` is the share of the run that is done. */
  draw({ members, mine, round, progress }) {
    const placed = arcs(members, mine);
    const here = new Set(placed.map(({ peer }) => peer));
    for (const [peer, arc] of this.members) if (!here.has(peer)) this.farewell(peer, arc);
    for (const arc of placed) this.place(arc, arc.peer === mine);

    const labelled = placed.length <= MAX_LABELS ? placed : placed.filter(({ peer }) => peer === mine);
    this.labels.replaceChildren(...labelled.map((arc) => label(arc, mine)));
    this.number.textContent = Number.isFinite(round) ? count(round) : "";
    this.over.textContent = Number.isFinite(round) ? "round" : "";
    this.unit.textContent = placed.length ? plural(placed.length, "member", "members") : "";
    const share = Number.isFinite(progress) ? Math.min(Math.max(progress, 0), 1) : 0;
    this.done.setAttribute("stroke-dasharray", `${360 * share} 360`);
    this.describe(placed, mine, round, progress);
  }

  place({ peer, start, length }, mine) {
    let arc = this.members.get(peer);
    if (!arc) {
      const circle = svg("circle", { r: RADIUS, pathLength: 360 }, svg("title"));
      arc = { circle, start: start + length / 2 };
      circle.setAttribute("stroke-dasharray", "0 360");
      circle.setAttribute("stroke-dashoffset", -arc.start);
      this.tracks.append(circle);
      this.members.set(peer, arc);
      circle.getBoundingClientRect(); // The empty arc must have been laid out for the growth to be seen.
    }
    // Of the equal angles, the one next to where the arc is: it must not run around the ring to get there.
    arc.start = start + 360 * Math.round((arc.start - start) / 360);
    arc.circle.setAttribute("class", mine ? "member mine" : "member");
    arc.circle.setAttribute("stroke-dasharray", `${length} ${360 - length}`);
    arc.circle.setAttribute("stroke-dashoffset", -arc.start);
    arc.circle.firstChild.textContent = mine ? "This tab" : `Peer ${short(peer)}`;
  }

  farewell(peer, arc) {
    this.members.delete(peer);
    arc.circle.setAttribute("class", "member gone");
    setTimeout(() => arc.circle.remove(), FAREWELL_MS);
  }

  /** The same in words, for those who do not see the picture. */
  describe(placed, mine, round, progress) {
    if (!placed.length) {
      this.picture.setAttribute("aria-label", "The ring: nothing known of its members yet.");
      return;
    }
    const names = placed.slice(0, MAX_LABELS).map(({ peer, share }) => `${peer === mine ? "this tab" : short(peer, 4)} ${percent(share)}`);
    const rest = placed.length > MAX_LABELS ? `, and ${placed.length - MAX_LABELS} more` : "";
    const done = Number.isFinite(progress) ? ` ${percent(progress)} of the run is done.` : "";
    this.picture.setAttribute("aria-label",
      `The ring at round ${count(round)}, ${plural(placed.length, "member", "members")} in ring order with their shares: ${names.join(", ")}${rest}.${done}`);
  }
}

function label({ peer, share, start, length }, mine) {
  const angle = ((start + length / 2 - 90) * Math.PI) / 180;
  const [x, y] = [(LABEL * Math.cos(angle)).toFixed(1), LABEL * Math.sin(angle)];
  const side = Math.cos(angle);
  const anchor = side > 0.4 ? "start" : side < -0.4 ? "end" : "middle";
  const own = peer === mine;
  return svg("text", { "text-anchor": anchor },
    svg("tspan", { x, y: (y - 3 + 5 * Math.sin(angle)).toFixed(1), class: own ? "you" : "name" }, own ? "you" : short(peer, 4)),
    svg("tspan", { x, dy: 15 }, percent(share)));
}
