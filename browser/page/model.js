// What is known of the run, from the node that serves the page and from this tab's own worker. Knows nothing of the
// page's looks. Of what comes in, anything may be absent.

import { short } from "./format.js";
import { shares } from "./time.js";

/** Most items of each list; of older rounds the serving node knows. */
const MAX_POINTS = 8192;
/** Rates and means are taken over this many seconds. */
const WINDOW_SECONDS = 30;
const MAX_WINDOW = 400;
/** Weight of a new round in the shares shown: they jump about. */
const NEW = 0.25;

export class Run {
  constructor() {
    this.info = null;
    this.status = null;
    /** Whether the serving node's last answer was one: null before the first. */
    this.answering = null;
    /** What the serving node answers to /pause: {may, paused}, whether it may be paused from here, and whether it is. */
    this.machine = null;
    this.own = null;
    /** How peers call themselves. */
    this.names = new Map();
    this.changes = [];
    this.evaluations = [];
    this.pace = [];
    this.shares = new Map();
  }

  /** Takes GET /status. */
  takeStatus(status) {
    this.status = status ?? {};
    for (const { peer, name } of list(this.status.peers)) if (name) this.names.set(peer, name);
    for (const change of list(this.status.changes)) this.noteChange(change);
    for (const evaluation of list(this.status.evaluations)) this.noteEvaluation(evaluation);
    if (!this.live) this.note(this.status.counted, list(this.status.peers).filter(({ member }) => member !== false));
  }

  begin() {
    this.own = { taking: true, last: null, since: null, history: [], samples: 0, sent: 0, received: 0, recent: [], target: null };
  }

  stop() {
    if (this.own) this.own.taking = false;
  }

  /** Takes an event of this tab's worker, as in docs/events.md; `mine` is this tab's name. */
  takeEvent(event, mine) {
    const { own } = this;
    if (!event || !own) return;
    if (event.event === "ready") [own.ready, own.target] = [event, event.target];
    if (event.event === "named") this.names.set(event.peer, event.name);
    if (event.event === "member") this.noteChange(event);
    if (event.event === "eval") this.noteEvaluation(event);
    if (event.event === "warning") this.noteChange({ change: "warning", reason: event.message, round: own.last?.round });
    if (event.event !== "round") return;
    own.last = event;
    own.sent += event.bytes_sent || 0;
    own.received += event.bytes_received || 0;
    const members = list(event.members);
    const me = members.find(({ peer }) => peer === mine);
    if (me) {
      own.samples += me.weight;
      own.since ??= event.round;
    }
    if (Number.isFinite(event.loss)) own.history.push([event.round, event.loss]);
    if (own.history.length > MAX_POINTS) own.history.shift();
    slide(own.recent, { ...event, now: performance.now() / 1000, took: Boolean(me) });
    this.note(event.counted, members);
  }

  /** Pace and shares; the shares are smoothed over rounds. */
  note(counted, members) {
    if (Number.isFinite(counted)) {
      if (counted < this.pace.at(-1)?.counted) this.pace = [];
      slide(this.pace, { now: performance.now() / 1000, counted });
    }
    const total = members.reduce((sum, { weight }) => sum + (weight || 0), 0);
    const before = this.shares;
    this.shares = new Map(members.map(({ peer, weight }) => {
      const now = total ? (weight || 0) / total : 0;
      const old = before.get(peer) ?? now;
      return [peer, old + NEW * (now - old)];
    }));
  }

  noteChange({ peer, change, round = 0, reason = "" }) {
    insert(this.changes, { key: `${peer} ${change} ${round} ${peer ? "" : reason}`, peer, change, round, reason });
  }

  noteEvaluation({ round, loss, metrics }) {
    insert(this.evaluations, { key: round, round, loss, metrics });
  }

  /** Whether this tab knows more of the run than the serving node told. */
  get live() {
    const { own, status } = this;
    return Boolean(own?.last) && (own.taking || !(status?.round > own.last.round));
  }

  get size() {
    return this.shares.size;
  }

  /** What is trained, and what for, in words of the founder: "" if it did not say. */
  get title() {
    return this.info?.title || this.own?.ready?.title || "";
  }

  get about() {
    return this.info?.about || this.own?.ready?.about || "";
  }

  /** A peer's name, or the beginning of its digits. */
  called(peer) {
    return this.names.get(peer) ?? short(peer, 4);
  }

  /** [place, of how many]: this tab among all whom the serving node saw, by their samples. */
  rank(mine) {
    const all = list(this.status?.peers).filter(({ samples }) => samples > 0).sort((a, b) => b.samples - a.samples);
    const place = all.findIndex(({ peer }) => peer === mine);
    return place < 0 || all.length < 3 ? null : [place + 1, all.length];
  }

  get task() {
    return this.info?.task ?? this.status?.task ?? null;
  }

  /** All that the pictures and figures show; `mine` is this tab's name while it takes part. */
  picture(mine) {
    const { own, live } = this;
    const status = this.status ?? {};
    const { round, loss, digest, counted } = live ? own.last : status;
    const target = own?.target ?? status.target;
    // Where the model is split over the members samples count for who has its last part: they say nothing of who does how much.
    const split = this.info?.spans > 0;
    const rate = this.rate() ?? (live ? null : status.samples_per_second);
    const mean = (of, recent = own?.recent ?? []) => recent.reduce((sum, event) => sum + event[of], 0) / recent.length;
    const took = own?.recent.filter((event) => event.took);
    // Once this tab computes, its own time; before and after, that of the serving node.
    const partakes = live && own.taking && took.length > 0;
    const sum = (of) => took.reduce((all, event) => all + (event[of] || 0), 0);
    const [from, to] = [own?.history[0]?.[0] ?? Infinity, own?.history.at(-1)?.[0] ?? -1];
    const theirs = list(status.losses);
    return {
      live, mine, round, loss, digest, counted, target, rate,
      split,
      members: [...this.shares].map(([peer, weight]) => ({ peer, name: this.names.get(peer), weight: split ? null : weight })),
      share: split ? null : this.shares.get(mine) ?? null,
      progress: target > 0 && Number.isFinite(counted) ? Math.min(counted / target, 1) : null,
      left: rate > 0 && target > 0 ? Math.max(target - counted, 0) / rate : null,
      history: [...theirs.filter(([at]) => at < from), ...(own?.history ?? []), ...theirs.filter(([at]) => at > to && at > from)],
      sample: status.sample ?? null,
      rank: this.rank(mine),
      evaluations: this.evaluations,
      changes: this.changes,
      // Those of the serving node; a tab's own would tell little: whom it has not dialled is relayed.
      links: this.answering ? list(status.peers).filter(({ link }) => link) : [],
      server: status.peer,
      since: own?.since ?? null,
      samples: own?.samples,
      traffic: mine ? [own.received, own.sent] : [status.bytes_received, status.bytes_sent],
      time: partakes ? shares(took, mine) : status.time ?? null,
      timeIsMine: Boolean(partakes),
      sampleBytes: partakes ? sum("bytes_sent") / sum("samples") : status.sample_bytes,
      seconds: mean("seconds"),
      compute: mean("compute_seconds", took),
      reduce: mean("reduce_seconds", took),
    };
  }

  /** Samples a second of the whole run, or null where too little was seen. */
  rate() {
    const [first, last] = [this.pace[0], this.pace.at(-1)];
    return last?.now - first?.now > 2 ? (last.counted - first.counted) / (last.now - first.now) : null;
  }
}

function slide(window, item) {
  window.push(item);
  while (window.length > 2 && (window.length > MAX_WINDOW || window[0].now < item.now - WINDOW_SECONDS)) window.shift();
}

/** Inserts in order of rounds what is not yet there. */
function insert(items, item) {
  if (items.some(({ key }) => key === item.key)) return;
  items.push(item);
  items.sort((a, b) => a.round - b.round);
  if (items.length > MAX_POINTS) items.shift();
}

function list(value) {
  return Array.isArray(value) ? value.filter((item) => item && typeof item === "object") : [];
}
