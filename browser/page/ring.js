// The ring: one arc for each member, clockwise in ring order, as long as its share, or all alike if they have none; this tab's is at the top. Arcs
// grow in when a peer joins and fade when it is gone. Knows nothing of the page.

import { count, percent, plural, short } from "./format.js";

const RADIUS = 96;
const INNER = 74;
const LABEL = 123;
/** More would run into each other. */
const MAX_LABELS = 12;
/** Letters of a name that fit beside the ring. */
const LETTERS = 9;
const FAREWELL_MS = 2600;
/** The sliver that a member keeps that contributed nothing, as a share. */
const LEAST = 0.012;

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Where each member's arc starts and how long it is, in degrees clockwise; that of `mine` is centred at the top. */
export function arcs(members, mine) {
  const n = members.length;
  const gap = n === 1 ? 0 : Math.min(3, 72 / n);
  const total = members.reduce((sum, { weight }) => sum + weight, 0);
  const sizes = members.map(({ weight }) => Math.max(total ? weight / total : 1, LEAST));
  const scale = (360 - n * gap) / sizes.reduce((a, b) => a + b, 0);
  let end = gap / 2;
  const placed = members.map(({ peer, name, weight }, i) => {
    const start = end;
    end += sizes[i] * scale + gap;
    return { peer, name, share: weight === null ? null : total ? weight / total : 0, start, length: sizes[i] * scale };
  });
  const own = placed.find(({ peer }) => peer === mine);
  return placed.map((arc) => ({ ...arc, start: arc.start - (own ? own.start + own.length / 2 : 0) }));
}

export class Ring {
  constructor(figure) {
    this.members = new Map();
    this.done = svg("circle", { class: "done", r: INNER, pathLength: 360, "stroke-dasharray": "0 360" });
    this.tracks = svg("g", { transform: "rotate(-90)" },
      svg("circle", { class: "bed", r: RADIUS }), svg("circle", { class: "whole", r: INNER }), this.done);
    this.labels = svg("g");
    this.texts = [svg("text", { y: -30 }), svg("text", { class: "number", y: 10 }), svg("text", { y: 28 })];
    this.picture = svg("svg", { viewBox: "-160 -142 320 290", role: "img" }, this.tracks, this.labels, ...this.texts);
    figure.prepend(this.picture);
  }

  /** Draws members in ring order; `progress` is the share of the run that is done. */
  draw({ members, mine, round, progress }) {
    const placed = arcs(members, mine);
    for (const [peer, { circle }] of this.members) {
      if (placed.some((arc) => arc.peer === peer)) continue;
      this.members.delete(peer);
      circle.setAttribute("class", "member gone");
      setTimeout(() => circle.remove(), FAREWELL_MS);
    }
    for (const arc of placed) this.place(arc, arc.peer === mine);
    const labelled = placed.length <= MAX_LABELS ? placed : placed.filter(({ peer }) => peer === mine);
    this.labels.replaceChildren(...labelled.map((arc) => label(arc, mine)));
    const texts = placed.length ? ["round", count(round), plural(placed.length, "member", "members")] : [];
    this.texts.forEach((element, i) => (element.textContent = texts[i] ?? ""));
    this.done.setAttribute("stroke-dasharray", `${360 * (progress ?? 0)} 360`);

    // The picture for those who do not see it.
    const shares = placed.slice(0, MAX_LABELS).map(({ peer, name, share }) => [peer === mine ? "this tab" : name ?? short(peer, 4), said(share)].join(" ").trim());
    this.picture.setAttribute("aria-label", texts.length
      ? `The ring at ${texts.slice(0, 2).join(" ")}: ${texts[2]}, in ring order ${shares.join(", ")}${placed.length > MAX_LABELS ? " and more" : ""}; ${percent(progress)} of the run is done.`
      : "The ring: its members are not known yet.");
  }

  place({ peer, start, length }, mine) {
    let arc = this.members.get(peer);
    if (!arc) {
      const middle = start + length / 2;
      arc = { start: middle, circle: svg("circle", { r: RADIUS, pathLength: 360, "stroke-dasharray": "0 360", "stroke-dashoffset": -middle }) };
      this.tracks.append(arc.circle);
      this.members.set(peer, arc);
      arc.circle.getBoundingClientRect(); // Laid out empty, so that its growth is seen.
    }
    // Of the equal angles the nearest: it must not run around the ring to get there.
    arc.start = start + 360 * Math.round((arc.start - start) / 360);
    arc.circle.setAttribute("class", mine ? "member mine" : "member");
    arc.circle.setAttribute("stroke-dasharray", `${length} ${360 - length}`);
    arc.circle.setAttribute("stroke-dashoffset", -arc.start);
  }
}

function label({ peer, name, share, start, length }, mine) {
  const angle = ((start + length / 2 - 90) * Math.PI) / 180;
  const [x, y] = [LABEL * Math.cos(angle), (LABEL + 5) * Math.sin(angle) - 3];
  const anchor = x > 50 ? "start" : x < -50 ? "end" : "middle";
  const own = peer === mine;
  return svg("text", { "text-anchor": anchor },
    svg("tspan", { x, y, class: own ? "you" : name ? "called-so" : "name" }, own ? "you" : name ? cut(name) : short(peer, 4)),
    svg("tspan", { x, dy: 15 }, said(share)));
}

/** A name, as much of it as there is room for. */
function cut(name) {
  const letters = [...name];
  return letters.length > LETTERS ? `${letters.slice(0, LETTERS - 1).join("")}…` : name;
}

/** A share, if members have shares. */
function said(share) {
  return share === null ? "" : percent(share);
}
