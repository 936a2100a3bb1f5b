// What the browser tells of the device around the tab, where it tells: charger, connection, screen; the lock that
// keeps a training tab from being put to sleep; and the preferences. Every part may be missing.

/** Watches charger and connection; `changed()` is called on each change. */
export class Surroundings {
  constructor(changed) {
    this.battery = null;
    this.connection = navigator.connection ?? {};
    this.connection.addEventListener?.("change", changed);
    navigator.getBattery?.().then((battery) => {
      this.battery = battery;
      battery.addEventListener("chargingchange", changed);
      changed();
    }, () => {});
  }

  get tellsCharging() {
    return this.battery !== null;
  }

  get onBattery() {
    return this.battery?.charging === false;
  }

  get tellsMetered() {
    return "saveData" in this.connection || "type" in this.connection;
  }

  get metered() {
    return Boolean(this.connection.saveData) || this.connection.type === "cellular";
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

/** What was stored, of the kind that the defaults have. */
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
    // Private windows may refuse: then the settings last as long as the page.
  }
}
