// What the browser tells of the device around the tab, where it tells: charger, connection, screen; and the lock that
// keeps a training tab from being put to sleep. Every part may be missing.

/** Watches charger and connection; `changed()` is called on each change. */
export class Surroundings {
  constructor(changed) {
    this.changed = changed;
    this.battery = null;
    this.connection = navigator.connection ?? null;
    this.connection?.addEventListener?.("change", changed);
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
    return this.battery !== null && !this.battery.charging;
  }

  get tellsMetered() {
    return Boolean(this.connection && ("saveData" in this.connection || "type" in this.connection));
  }

  get metered() {
    return Boolean(this.connection?.saveData) || this.connection?.type === "cellular";
  }
}

/** Keeps the screen on while wanted and while the tab is in front. */
export class Awake {
  constructor() {
    this.wanted = false;
    this.asking = false;
    this.sentinel = null;
    document.addEventListener("visibilitychange", () => this.want(this.wanted));
  }

  static get available() {
    return "wakeLock" in navigator;
  }

  async want(wanted) {
    this.wanted = wanted;
    if (!wanted) {
      this.sentinel?.release().catch(() => {});
      this.sentinel = null;
      return;
    }
    if (!Awake.available || document.hidden || (this.sentinel && !this.sentinel.released) || this.asking) return;
    this.asking = true;
    try {
      this.sentinel = await navigator.wakeLock.request("screen");
      if (!this.wanted) this.want(false);
    } catch {
      // Refused, as on a low battery: the screen may go dark, training goes on as far as the browser lets it.
    } finally {
      this.asking = false;
    }
  }
}

/** A lock that another request waits for: browsers leave tabs awake that hold one. */
export class Held {
  constructor() {
    this.release = null;
  }

  set(held) {
    if (held === Boolean(this.release) || !navigator.locks) return;
    if (!held) {
      this.release();
      this.release = null;
      return;
    }
    const name = `annulus ${crypto.randomUUID?.() ?? Math.random()}`;
    const waiting = new AbortController();
    const over = new Promise((resolve) => {
      this.release = () => {
        waiting.abort();
        resolve();
      };
    });
    navigator.locks.request(name, () => over).catch(() => {});
    navigator.locks.request(name, { signal: waiting.signal }, () => {}).catch(() => {});
  }
}

/** Preferences, kept in the browser where it allows that. */
const KEY = "annulus";

export function loadPreferences(defaults) {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    const valid = Object.entries(defaults).filter(([key, value]) => typeof stored[key] === typeof value);
    return { ...defaults, ...Object.fromEntries(valid.map(([key]) => [key, stored[key]])) };
  } catch {
    return { ...defaults };
  }
}

export function savePreferences(preferences) {
  try {
    localStorage.setItem(KEY, JSON.stringify(preferences));
  } catch {
    // Private windows may refuse: the settings last as long as the page.
  }
}
