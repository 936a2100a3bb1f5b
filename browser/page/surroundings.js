// What is around the tab: charger, connection, screen, the lock that keeps a tab awake, preferences. Each may be
// missing.

/** Charger and connection: true, false, or null where the browser does not tell; `changed()` is called on changes. */
export class Surroundings {
  constructor(changed) {
    this.onBattery = null;
    const connection = navigator.connection ?? {};
    const look = () => {
      this.metered = "saveData" in connection || "type" in connection ? connection.saveData === true || connection.type === "cellular" : null;
    };
    look();
    connection.addEventListener?.("change", () => changed(look()));
    navigator.getBattery?.().then((battery) => {
      const read = () => changed((this.onBattery = !battery.charging));
      battery.addEventListener("chargingchange", read);
      read();
    }, () => {});
  }
}

/** Keeps the screen on while that is wanted and the tab is in front. */
export class Awake {
  static available = "wakeLock" in navigator;

  constructor() {
    this.wanted = false;
    this.lock = null;
    document.addEventListener("visibilitychange", () => this.want(this.wanted));
  }

  /** A refusal, as on a low battery, is fine: the screen may go dark. */
  want(wanted) {
    this.wanted = wanted;
    if (wanted && Awake.available && !document.hidden && !this.lock) {
      this.lock = navigator.wakeLock.request("screen");
      this.lock.then((lock) => lock.addEventListener("release", () => (this.lock = null)), () => (this.lock = null));
    } else if (!wanted) {
      this.lock?.then((lock) => lock.release(), () => {});
    }
  }
}

/** A lock that another request waits for: browsers leave tabs awake that hold one. */
export class Held {
  set(held) {
    if (held === Boolean(this.release) || !navigator.locks) return;
    if (!held) {
      this.release();
      this.release = null;
      return;
    }
    const name = `annulus ${crypto.randomUUID()}`;
    const waiting = new AbortController();
    const over = new Promise((resolve) => (this.release = resolve));
    navigator.locks.request(name, () => over.then(() => waiting.abort())).catch(() => {});
    navigator.locks.request(name, { signal: waiting.signal }, () => {}).catch(() => {});
  }
}

const KEY = "annulus";

export function loadPreferences(defaults) {
  try {
    const stored = Object.entries(JSON.parse(localStorage.getItem(KEY)) ?? {});
    return { ...defaults, ...Object.fromEntries(stored.filter(([key, value]) => typeof value === typeof defaults[key])) };
  } catch {
    return defaults;
  }
}

export function savePreferences(preferences) {
  try {
    localStorage.setItem(KEY, JSON.stringify(preferences));
  } catch {
    // Private windows may refuse.
  }
}
