// What is known of the run: from the node that serves the page while watching, from this tab's own worker while it
// takes part. Knows nothing of the page's looks.

/** Most points of this tab's own history; beyond, neighbours are merged. */
const MAX_POINTS = 8192;
const MAX_CHANGES = 60;
const MAX_EVALUATIONS = 2000;
/** Rates are taken over this many seconds. */
const WINDOW_SECONDS = 30;
/** Weight of a new round in the shares that are shown: a round's own are whole samples and jump about. */
const NEW = 0.25;

export class Run {
  constructor() {
    this.info = null;
    this.status = null;
    /** Whether the serving node's last answer was one: null before the first. */
    this.answering = null;
    this.own = null;
    this.changes = [];
    this.evaluations = [];
    this.pace = [];
    this.shares = new Map();
  }

  /** Takes GET /peer.json. */
  takeInfo(info) {
    if (info && typeof info === "object") this.info = info;
  }

  /** Takes GET /status; anything in it may be absent. */
  takeStatus(status) {
    if (!status || typeof status !== "object") return;
    this.status = status;
    for (const change of list(status.changes)) this.noteChange(change);
    for (const evaluation of list(status.evaluations)) this.noteEvaluation(evaluation);
    if (!this.own?.last) {
      this.notePace(status.counted);
      this.share(peersOf(status));
    }
  }

  /** This tab begins to take part. */
  begin() {
    this.own = { last: null, since: null, history: [], step: 1, held: null, samples: 0, sent: 0, received: 0, recent: [], target: null };
    this.pace = [];
  }

  /** Takes an event of this tab's worker, as in docs/events.md. */
  takeEvent(event, mine) {
    if (!event || !this.own) return;
    if (event.event === "ready") this.own.target = event.target;
    if (event.event === "member") this.noteChange(event);
    if (event.event === "eval") this.noteEvaluation(event);
    if (event.event === "warning") this.noteChange({ change: "warning", reason: event.message, round: this.own.last?.round });
    if (event.event === "round") this.takeRound(event, mine);
  }

  takeRound(event, mine) {
    const own = this.own;
    own.last = event;
    own.sent += event.bytes_sent || 0;
    own.received += event.bytes_received || 0;
    const weight = list(event.members).find(({ peer }) => peer === mine)?.weight ?? null;
    if (weight !== null) {
      own.samples += weight;
      own.since ??= event.round;
    }
    own.weight = weight;
    if (Number.isFinite(event.loss)) this.notePoint(event.round, event.loss);
    const now = performance.now() / 1000;
    own.recent.push({ now, total: event.seconds, compute: event.compute_seconds, reduce: event.reduce_seconds, taking: weight !== null });
    while (own.recent.length > 400 || (own.recent.length > 1 && own.recent[0].now < now - WINDOW_SECONDS)) own.recent.shift();
    this.notePace(event.counted);
    this.share(list(event.members));
  }

  /** Bounded: when full, neighbours are merged, and so are those that follow. */
  notePoint(round, loss) {
    const own = this.own;
    own.held = own.held ? { round, sum: own.held.sum + loss, n: own.held.n + 1 } : { round, sum: loss, n: 1 };
    if (own.held.n < own.step) return;
    own.history.push([round, own.held.sum / own.held.n]);
    own.held = null;
    if (own.history.length < MAX_POINTS) return;
    own.history = own.history.flatMap((point, i, all) => (i % 2 ? [[point[0], (point[1] + all[i - 1][1]) / 2]] : []));
    own.step *= 2;
  }

  notePace(counted) {
    if (!Number.isFinite(counted)) return;
    const now = performance.now() / 1000;
    if (this.pace.length && counted < this.pace[this.pace.length - 1].counted) this.pace = [];
    this.pace.push({ now, counted });
    while (this.pace.length > 2 && (this.pace.length > 400 || this.pace[0].now < now - WINDOW_SECONDS)) this.pace.shift();
  }

  noteChange({ peer = null, change, round = null, reason = "" }) {
    const key = `${peer} ${change} ${round} ${peer ? "" : reason}`;
    if (!change || this.changes.some((known) => known.key === key)) return;
    this.changes.push({ key, peer, change, round, reason });
    this.changes.sort((a, b) => (a.round ?? 0) - (b.round ?? 0));
    if (this.changes.length > MAX_CHANGES) this.changes.shift();
  }

  noteEvaluation({ round, loss, accuracy }) {
    if (!Number.isFinite(round) || this.evaluations.some((known) => known.round === round)) return;
    this.evaluations.push({ round, loss, accuracy });
    this.evaluations.sort((a, b) => a.round - b.round);
    if (this.evaluations.length > MAX_EVALUATIONS) this.evaluations.shift();
  }

  /** Smooths the members' shares over rounds. */
  share(members) {
    const total = members.reduce((sum, { weight }) => sum + (weight || 0), 0);
    const before = this.shares;
    this.shares = new Map(members.map(({ peer, weight }) => {
      const now = total ? (weight || 0) / total : 0;
      const old = before.get(peer);
      return [peer, old === undefined ? now : old + NEW * (now - old)];
    }));
  }

  /** Number of members, as far as known. */
  get size() {
    return this.shares.size;
  }

  get task() {
    return this.info?.task ?? this.status?.task ?? null;
  }

  /** All that the pictures and figures show. */
  picture(mine) {
    const { own, status } = this;
    const last = own?.last ?? null;
    const source = last ?? status ?? {};
    const before = list(status?.history).filter((point) => Array.isArray(point) && !(own?.history.length && point[0] >= own.history[0][0]));
    const counted = source.counted;
    const target = own?.target ?? status?.target ?? null;
    const rate = this.rate();
    const samples = new Map(peersOf(status).map(({ peer, samples: all }) => [peer, all]));
    return {
      live: Boolean(last),
      mine,
      members: [...this.shares].map(([peer, weight]) => ({ peer, weight, samples: peer === mine ? own?.samples : samples.get(peer) })),
      round: source.round,
      loss: source.loss,
      digest: source.digest,
      counted,
      target,
      progress: target > 0 && Number.isFinite(counted) ? counted / target : null,
      rate: rate ?? (last ? null : status?.samples_per_second),
      left: rate > 0 && target > 0 ? Math.max(target - counted, 0) / rate : null,
      elapsed: status?.elapsed_seconds,
      history: own ? [...before, ...own.history] : before,
      evaluations: this.evaluations,
      changes: this.changes,
      since: own?.since ?? null,
      share: mine && last ? this.shares.get(mine) ?? 0 : null,
      weight: own?.weight ?? null,
      roundSamples: last?.samples,
      samples: own?.samples,
      sent: last ? own.sent : status?.bytes_sent,
      received: last ? own.received : status?.bytes_received,
      seconds: own ? mean(own.recent.map(({ total }) => total)) : null,
      compute: own ? mean(own.recent.filter(({ taking }) => taking).map(({ compute }) => compute)) : null,
      reduce: own ? mean(own.recent.filter(({ taking }) => taking).map(({ reduce }) => reduce)) : null,
    };
  }

  /** Samples a second that the whole run counts, or null where too little was seen. */
  rate() {
    if (this.pace.length < 2) return null;
    const [first, last] = [this.pace[0], this.pace[this.pace.length - 1]];
    return last.now - first.now > 2 ? (last.counted - first.counted) / (last.now - first.now) : null;
  }
}

function list(value) {
  return Array.isArray(value) ? value.filter((item) => item && typeof item === "object") : [];
}

function peersOf(status) {
  return list(status?.peers);
}

function mean(values) {
  const known = values.filter(Number.isFinite);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}
