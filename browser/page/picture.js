// A picture of this tab's part in a run, to keep or to show to others. Knows nothing of the page.

import { arcs } from "./ring.js";

const [WIDTH, HEIGHT, RADIUS, STROKE] = [1200, 630, 190, 48];
const CENTRE = [290, HEIGHT / 2];
const COLORS = { paper: "#fff", ink: "#15181b", quiet: "#5b636b", member: "#8d959d", accent: "#c8460c" };
const FONT = '-apple-system, "Segoe UI", Roboto, Inter, "Noto Sans", Arial, sans-serif';

/** Draws the ring with this tab's arc, and beside it a large line with others below. */
export function paint({ members, mine, large, lines }) {
  const canvas = Object.assign(document.createElement("canvas"), { width: WIDTH, height: HEIGHT });
  const context = canvas.getContext("2d");
  context.fillStyle = COLORS.paper;
  context.fillRect(0, 0, WIDTH, HEIGHT);
  context.lineWidth = STROKE;
  for (const { peer, start, length } of arcs(members, mine)) {
    const [from, to] = [start - 90, start - 90 + length].map((degrees) => (degrees * Math.PI) / 180);
    context.beginPath();
    context.strokeStyle = peer === mine ? COLORS.accent : COLORS.member;
    context.arc(...CENTRE, RADIUS, from, to);
    context.stroke();
  }
  let y = 210;
  for (const [text, size, color, weight] of [[large, 64, COLORS.ink, 650], ...lines.map((line) => [line, 32, COLORS.quiet, 400])]) {
    context.fillStyle = color;
    context.font = `${weight} ${size}px ${FONT}`;
    for (const line of folded(context, text, WIDTH - 620)) {
      context.fillText(line, 570, y);
      y += size * 1.25;
    }
    y += 14;
  }
  return canvas;
}

/** A text in lines that are not too wide. */
function folded(context, text, width) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (context.measureText(longer).width > width && lines.at(-1)) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}

/** Hands a file to the system's way of sharing where it takes it, and to the downloads elsewhere. */
export async function hand(blob, name, share) {
  const file = new File([blob], name, { type: blob.type });
  if (share && navigator.canShare?.({ files: [file] })) {
    const shared = await navigator.share({ files: [file] }).then(() => true, (error) => error.name === "AbortError");
    if (shared) return;
  }
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
