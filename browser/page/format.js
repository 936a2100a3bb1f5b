// Numbers, bytes, durations and names in words. Knows nothing of the page.

const group = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** A whole number with separators, or a dash for what is not known. */
export function count(value) {
  return Number.isFinite(value) ? group.format(value) : "–";
}

/** A number with `digits` significant digits, never in exponents. */
export function significant(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const decimals = digits - 1 - Math.floor(Math.log10(Math.abs(value)));
  return value.toLocaleString("en-US", {
    minimumFractionDigits: Math.min(Math.max(decimals, 0), 6),
    maximumFractionDigits: Math.min(Math.max(decimals, 0), 6),
    useGrouping: decimals < 0,
  });
}

/** A loss: four digits, so that it does not jump about. */
export function loss(value) {
  if (!Number.isFinite(value)) return "–";
  return Math.abs(value) >= 100 ? significant(value, 4) : value.toFixed(Math.abs(value) < 0.1 ? 4 : 3);
}

export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const value = 100 * share;
  return `${value > 0 && value < 9.95 ? value.toFixed(1) : Math.round(value)} %`;
}

/** Decimal units, as networks are sold. */
export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit ? significant(value, 3) : Math.round(value)} ${units[unit]}`;
}

/** How many parameters a model has: "0.83 M". */
export function parameters(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 1e9) return `${significant(value / 1e9, 3)} G`;
  if (value >= 1e5) return `${significant(value / 1e6, value >= 1e6 ? 3 : 2)} M`;
  return count(value);
}

/** A short time, as of a round. */
export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 0.9995) return `${significant(1000 * value, value < 0.01 ? 2 : 3)} ms`;
  return value < 60 ? `${significant(value, 3)} s` : duration(value);
}

/** A long time in its two largest units. */
export function duration(value) {
  if (!Number.isFinite(value)) return "–";
  const whole = Math.round(value);
  const [d, h, m, s] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60];
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  if (m) return m < 10 && s ? `${m} min ${s} s` : `${m} min`;
  return `${s} s`;
}

/** The beginning of a peer's, run's or digest's 64 hexadecimal digits. */
export function short(name, digits = 8) {
  return typeof name === "string" ? name.slice(0, digits) : "–";
}

/** "1 other", "3 others". */
export function plural(value, one, many) {
  return `${count(value)} ${value === 1 ? one : many}`;
}
