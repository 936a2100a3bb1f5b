// What this browser has computed for runs, over all visits. It stays in this browser. Knows nothing of the page.

const KEY = "annulus given";
/** Runs that are remembered, those of the last visits. */
const RUNS = 200;
const SAVE_MS = 5000;

export class Given {
  constructor() {
    this.saved = 0;
    this.runs = new Map();
    try {
      const sound = ([run, samples]) => /^[0-9a-f]{64}$/.test(run) && samples > 0;
      this.runs = new Map(JSON.parse(localStorage.getItem(KEY)).filter(sound));
    } catch {
      // Nothing was given yet, or a private window remembers nothing.
    }
  }

  add(run, samples) {
    if (!run || !(samples > 0)) return;
    const before = this.runs.get(run) ?? 0;
    this.runs.delete(run);
    this.runs.set(run, before + samples);
    if (performance.now() - this.saved > SAVE_MS) this.save();
  }

  save() {
    this.saved = performance.now();
    try {
      localStorage.setItem(KEY, JSON.stringify([...this.runs].slice(-RUNS)));
    } catch {
      // As above.
    }
  }

  to(run) {
    return this.runs.get(run) ?? 0;
  }

  /** {samples, runs}, in all. */
  get all() {
    return { samples: [...this.runs.values()].reduce((sum, samples) => sum + samples, 0), runs: this.runs.size };
  }
}
