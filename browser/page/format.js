// Numbers, bytes, durations and names in words; a dash for what is not known. Knows nothing of the page.

const number = (value, decimals) => value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });

export function count(value) {
  return Number.isFinite(value) ? number(value, 0) : "–";
}

/** `digits` significant digits, never in exponents. */
export function significant(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  const rounded = Math.abs(Number(value.toPrecision(digits)));
  const decimals = rounded ? digits - 1 - Math.floor(Math.log10(rounded)) : 0;
  return number(value, Math.min(Math.max(decimals, 0), 6));
}

/** Four digits, so that it does not jump about; what would look like nothing as a power of ten. */
export function loss(value) {
  if (value && Math.abs(value) < 1e-3) return value.toExponential(2);
  return Number.isFinite(value) ? value.toFixed(Math.abs(value) < 0.1 ? 4 : 3) : "–";
}

export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  return `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)}\u00a0%`;
}

/** An evaluation's named measures: ["97 % right", "rmse 51,400"]. */
export function qualities(metrics = {}) {
  return Object.entries(metrics).map(([name, value]) => name === "accuracy" ? `${percent(value)} right` : `${name} ${significant(value)}`);
}

/** Decimal units, as networks are sold. */
export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const unit = Math.min(Math.floor(Math.log10(Math.max(value, 1) * 1.0005) / 3), units.length - 1);
  return `${unit ? significant(value / 1000 ** unit) : count(value)}\u00a0${units[unit]}`;
}

/** How many parameters a model has: "0.83 M". */
export function parameters(value) {
  return value >= 1e5 ? `${significant(value / 1e6, value >= 1e6 ? 3 : 2)}\u00a0M` : count(value);
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  return value < 0.9995 ? `${significant(1000 * value)}\u00a0ms` : value < 60 ? `${significant(value)}\u00a0s` : duration(value);
}

/** A long time in its two largest units. */
export function duration(value) {
  if (!Number.isFinite(value)) return "–";
  const whole = Math.round(value);
  const [d, h, m, s] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60];
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  return m >= 10 || (m && !s) ? `${m} min` : m ? `${m} min ${s} s` : `${s} s`;
}

/** The beginning of a peer's, run's or digest's 64 hexadecimal digits. */
export function short(name, digits = 8) {
  return name?.slice?.(0, digits) ?? "–";
}

/** "1st", "12th". */
export function ordinal(value) {
  const kinds = { one: "st", two: "nd", few: "rd", other: "th" };
  return `${count(value)}${kinds[new Intl.PluralRules("en-US", { type: "ordinal" }).select(value)]}`;
}

/** "1 other", "3 others". */
export function plural(value, one, many) {
  return `${count(value)}\u00a0${value === 1 ? one : many}`;
}
