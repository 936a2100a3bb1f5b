// The worker that takes part in the run, seen from the page: what it was told, what it has said. Knows nothing of
// the page's looks. The ticket passes through and is not kept here.

/** States in which this tab takes part, or is about to. */
const ACTIVE = new Set(["connecting", "checking", "syncing", "following", "training", "paused", "reconnecting"]);
/** How long a leaving worker may take to finish its round before it is ended without, in milliseconds. */
const LEAVE_MS = 20_000;

export class Session {
  /** `changed(message)` is called after each message of the worker, and with null after what the page itself did. */
  constructor(changed) {
    this.changed = changed;
    this.worker = null;
    this.reset();
  }

  reset() {
    this.state = null;
    this.detail = "";
    this.failure = null;
    this.ready = null;
    this.sync = null;
    this.done = null;
    this.text = null;
    this.backend = null;
    this.leaving = false;
    this.asleep = false;
  }

  /** Asks what this tab can do; the answer comes as a message of type "device". */
  check() {
    this.open();
    this.worker.postMessage({ type: "check" });
  }

  start(ticket, backend, power, holds) {
    this.reset();
    this.state = "connecting";
    this.backend = backend;
    this.open();
    this.worker.postMessage({ type: "start", ticket, backend, power });
    if (document.hidden) this.tell({ type: "hidden", value: true });
    if (holds) this.tell({ type: "pause" });
    this.changed(null);
  }

  tell(message) {
    if (this.worker && this.active) this.worker.postMessage(message);
  }

  /** Asks the worker to finish its round and go. */
  leave() {
    if (!this.active) return;
    this.tell({ type: "leave" });
    this.leaving = true;
    const worker = this.worker;
    setTimeout(() => {
      if (this.worker === worker && this.leaving) this.end("left", "");
    }, LEAVE_MS);
    this.changed(null);
  }

  /** The browser put the page aside: whatever became of the worker, its part is over. */
  sleep() {
    if (!this.active) return;
    this.asleep = true;
    this.end("left", "");
  }

  get active() {
    return ACTIVE.has(this.state);
  }

  /** Whether the worker holds a model that can be asked for text. */
  get canSample() {
    return Boolean(this.worker) && ["following", "training", "paused", "reconnecting", "ended"].includes(this.state);
  }

  open() {
    if (this.worker) return;
    const worker = new Worker("worker.js", { type: "module", name: "annulus" });
    worker.addEventListener("message", ({ data }) => {
      if (this.worker === worker && data && typeof data === "object") this.hear(data);
    });
    worker.addEventListener("error", (event) => {
      event.preventDefault();
      if (this.worker === worker) this.fail("internal", event.message || "The trainer (worker.js) could not be loaded.");
    });
    this.worker = worker;
  }

  hear(message) {
    if (message.type === "state") {
      this.state = message.state;
      this.detail = message.detail ?? "";
      // An ended worker still holds the model, and may be asked what it writes.
      if (message.state === "left") this.end("left", this.detail, message);
    } else if (message.type === "failed") {
      return this.fail(message.kind, message.message, message);
    } else if (message.type === "text") {
      this.text = message;
    } else if (message.type === "event") {
      const { event } = message;
      if (event?.event === "ready") this.ready = event;
      if (event?.event === "sync") this.sync = event;
      if (event?.event === "done") this.done = event;
    }
    this.changed(message);
  }

  fail(kind, message, cause = null) {
    const during = this.state;
    this.close();
    this.failure = { kind, message: message ?? "", during };
    this.state = during === null ? null : "failed";
    this.changed(cause ?? { type: "failed", kind, message });
  }

  end(state, detail, cause = null) {
    this.close();
    this.state = state;
    this.detail = detail;
    this.leaving = false;
    if (!cause) this.changed(null);
  }

  close() {
    this.worker?.terminate();
    this.worker = null;
  }
}
