// The worker that takes part in the run, seen from the page. Knows nothing of the page's looks. The ticket passes
// through and is not kept.

/** States in which this tab takes part, or is about to. */
const ACTIVE = ["connecting", "fetching", "checking", "syncing", "following", "aside", "training", "paused", "reconnecting"];

export class Session {
  /** `changed(message)` is called after each message of the worker, and without one otherwise. */
  constructor(changed) {
    this.changed = changed;
    this.worker = null;
    this.reset();
  }

  reset() {
    Object.assign(this, {
      state: null, detail: "", failure: null, ready: null, fetch: null, sync: null, done: null, backend: null, leaving: false,
      generates: false, schema: null,
    });
  }

  /** Asks what this tab can do; the answer is a message of type "device". */
  check() {
    this.post({ type: "check" });
  }

  start(ticket, backend, power, name) {
    if (this.used) this.close(); // What has ended once starts from nothing.
    this.reset();
    this.state = "connecting";
    this.backend = backend;
    this.post({ type: "start", ticket, backend, power, name });
    this.used = true;
    this.changed();
  }

  tell(message) {
    if (this.active) this.post(message);
  }

  /** Leaves, and is gone after so many milliseconds at the latest. */
  leave(patience) {
    this.tell({ type: "leave" });
    this.leaving = this.active;
    const { worker } = this;
    setTimeout(() => this.leaving && this.worker === worker && this.end(), patience);
    this.changed();
  }

  get active() {
    return ACTIVE.includes(this.state);
  }

  /** Whether the worker has a model to ask. */
  get canAsk() {
    return Boolean(this.worker) && [...ACTIVE.slice(4), "ended"].includes(this.state);
  }

  post(message) {
    if (!this.worker) this.open();
    this.worker.postMessage(message);
  }

  open() {
    const worker = new Worker("worker.js", { type: "module", name: "annulus" });
    this.worker = worker;
    this.used = false;
    worker.addEventListener("message", ({ data }) => this.worker === worker && this.hear(data));
    worker.addEventListener("error", (event) => {
      if (this.worker === worker) this.fail("internal", event.message || "worker.js could not be loaded.");
    });
  }

  hear(message) {
    const { type, event } = message;
    if (type === "failed") return this.fail(message.kind, message.message);
    if (type === "state") {
      this.state = message.state;
      this.detail = message.detail ?? "";
      if (this.state === "left") return this.end();
    }
    if (type === "generates") this.generates = true;
    if (type === "predicts") this.schema = message.schema;
    if (type === "event" && ["ready", "fetch", "sync", "done"].includes(event?.event)) this[event.event] = event;
    this.changed(message);
  }

  fail(kind, message) {
    this.failure = { kind, message };
    this.end("failed");
  }

  end(state = "left") {
    this.close();
    this.state = state;
    this.leaving = false;
    this.changed();
  }

  close() {
    this.worker?.terminate();
    this.worker = null;
  }
}
